//! What a connection is to do: the runner tells the client, the client tells the server in the first bytes.

use std::io::{Read, Result, Write};
use std::net::TcpStream;

/// As text, `SLOT:SEED:MESSAGE_MAX:PAUSE_US:READ_PAUSE_US:SHAPE`, where SHAPE is a number, as below.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) slot: u32,
    pub(crate) seed: u64,
    /// The longest message, in bytes.
    pub(crate) message_max: u32,
    /// Each sender rests that long after each message.
    pub(crate) pause_us: u32,
    /// Each reader rests that long after each read, as one does that is busy with something else.
    pub(crate) read_pause_us: u32,
    pub(crate) shape: Shape,
}

/// Who sends when.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Both ends send as fast as they can.
    Duplex = 0,
    /// The client sends a message, and the next when as many bytes have come back.
    Lockstep = 1,
    /// Only the client sends, and it reads nothing before it has done so.
    OneWay = 2,
    /// As `Duplex`, and what the client sends is not looked at: it is hostile.
    Heedless = 3,
}

const MAGIC: u32 = 0x4d69_6c72;
pub(crate) const BYTES: usize = 32;

impl Order {
    pub(crate) fn parse(text: &str) -> Option<Order> {
        let mut fields = text.split(':').map(|field| field.parse::<u64>().ok());
        let mut next = || fields.next().flatten();
        let mut small = || next().and_then(|value| u32::try_from(value).ok());
        let slot = small()?;
        let seed = next()?;
        let mut small = || next().and_then(|value| u32::try_from(value).ok());
        Some(Order {
            slot,
            seed,
            message_max: small()?.max(1),
            pause_us: small()?,
            read_pause_us: small()?,
            shape: shape(small()?)?,
        })
    }

    /// Half of all connections send small messages without waiting for each other's acknowledgements.
    fn set_delay(&self, stream: &TcpStream) {
        // Refused where the connection is gone, which its next call says as well.
        let _ = stream.set_nodelay(self.seed.is_multiple_of(2));
    }

    pub(crate) fn transmit(&self, mut stream: &TcpStream) -> Result<()> {
        self.set_delay(stream);
        let mut bytes = Vec::with_capacity(BYTES);
        for word in [
            MAGIC,
            self.slot,
            self.message_max,
            self.pause_us,
            self.read_pause_us,
            self.shape as u32,
        ] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.seed.to_le_bytes());
        stream.write_all(&bytes)
    }

    /// None: the client went before it had said what it wants.
    pub(crate) fn receive(mut stream: &TcpStream) -> Option<Order> {
        let mut bytes = [0; BYTES];
        stream.read_exact(&mut bytes).ok()?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        assert_eq!(
            word(0),
            MAGIC,
            "the first bytes of a connection are wrong: {bytes:02x?}"
        );
        let order = Order {
            slot: word(4),
            message_max: word(8),
            pause_us: word(12),
            read_pause_us: word(16),
            shape: shape(word(20))?,
            seed: u64::from(word(24)) | u64::from(word(28)) << 32,
        };
        order.set_delay(stream);
        Some(order)
    }
}

fn shape(number: u32) -> Option<Shape> {
    [
        Shape::Duplex,
        Shape::Lockstep,
        Shape::OneWay,
        Shape::Heedless,
    ]
    .into_iter()
    .find(|shape| *shape as u32 == number)
}
