//! A trace's filter: any text is one, or says why not, and terms hold each for itself.

use millrace_port::pcap::Link;
use millrace_port::trace::Filter;
use millrace_wire::pcap::Direction;

/// Reads a filter and a packet, which are parted by a zero.
pub fn run(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0);
    let (text, packet) = bytes.split_at(end.unwrap_or(bytes.len()));
    let text = String::from_utf8_lossy(text);
    let filter = match text.parse::<Filter>() {
        Ok(filter) => filter,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(filter.to_string(), text);
    let both: Filter = format!("{filter} and {filter}").parse().expect("a filter");
    let narrower = format!("in {filter}").parse::<Filter>().expect("a filter");
    for link in [Link::Ethernet, Link::Ip] {
        for direction in [Direction::In, Direction::Out] {
            let is_one = filter.matches(packet, link, direction);
            assert_eq!(both.matches(packet, link, direction), is_one);
            let is_in = direction == Direction::In;
            assert_eq!(narrower.matches(packet, link, direction), is_one && is_in);
        }
    }
}
