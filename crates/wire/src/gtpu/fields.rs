//! Fields that are there or not, one after another: read from a slice and written to one. Both end with `None` where there is no room.

/// What is still to be read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Of three bytes, as sequence numbers have.
    pub(super) fn three(&mut self) -> Option<u32> {
        let [high, middle, low] = self.array()?;
        Some(u32::from_be_bytes([0, high, middle, low]))
    }

    pub(super) fn four(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn eight(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A field if a flag says that it is there; `None` only if it should be and is not.
    pub(super) fn when<T>(
        &mut self,
        there: bool,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        if there {
            read(self).map(Some)
        } else {
            Some(None)
        }
    }
}

/// Where is to be written, and how many bytes were.
pub(super) struct Writer<'a> {
    to: &'a mut [u8],
    pub(super) count: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(to: &'a mut [u8]) -> Writer<'a> {
        Writer { to, count: 0 }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.count.checked_add(bytes.len())?;
        self.to.get_mut(self.count..end)?.copy_from_slice(bytes);
        self.count = end;
        Some(())
    }

    /// The lower three bytes of a number.
    pub(super) fn three(&mut self, number: u32) -> Option<()> {
        self.put(&number.to_be_bytes()[1..])
    }

    pub(super) fn four(&mut self, number: u32) -> Option<()> {
        self.put(&number.to_be_bytes())
    }

    pub(super) fn eight(&mut self, number: u64) -> Option<()> {
        self.put(&number.to_be_bytes())
    }
}
