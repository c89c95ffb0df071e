//! The control protocol: what can be parsed is what is written again.

use millrace_wire::{MAX_BYTES, ToAgent, ToClient, VERSION_MAX};

/// Parses `bytes` as either side would.
pub fn run(bytes: &[u8]) {
    let mut buffer = [0; MAX_BYTES];
    if let Ok(message) = ToAgent::parse(bytes) {
        let length = message.encode(VERSION_MAX, &mut buffer);
        assert_eq!(ToAgent::parse(&buffer[..length]), Ok(message));
    }
    if let Ok(message) = ToClient::parse(bytes) {
        let length = message.encode(VERSION_MAX, &mut buffer);
        assert_eq!(ToClient::parse(&buffer[..length]), Ok(message));
    }
}
