//! What a container is called in paths and in names of ports, by switch and plugin alike.

/// As long as a name is at most: sockets' paths are short, and so are ports' names.
pub(crate) const NAME_BYTES_MAX: usize = 29;
/// What stays of a longer one; the rest is its hash.
const KEPT_BYTES: usize = 12;

/// A container's name, as short as it has to be, and without a dot. Those whose names begin alike are called apart.
#[must_use]
pub fn container_name(id: &str) -> String {
    // Shorter than what is made of a longer one: nobody's own name is that.
    if id.len() < NAME_BYTES_MAX && !id.contains('.') {
        return id.to_owned();
    }
    let kept: String = id.chars().take(KEPT_BYTES).collect();
    format!("{}-{:016x}", kept.replace('.', "-"), hash(&[id]))
}

/// FNV-1a (Fowler, Noll, Vo), of parts one behind the other.
#[must_use]
pub fn hash(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_apart() {
        let long = |last: char| format!("{}{last}", "a".repeat(63));
        assert_eq!(container_name("web-1"), "web-1");
        for (one, other) in [(long('1'), long('2')), ("a.b".to_owned(), "a-b".to_owned())] {
            let (one, other) = (container_name(&one), container_name(&other));
            assert_ne!(one, other);
            assert!(one.len() <= NAME_BYTES_MAX && !one.contains('.'), "{one}");
        }
    }
}
