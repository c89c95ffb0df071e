//! An echo of UDP by the kernel's stack, as fast as a program with one thread can make it: many datagrams with a call.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

use super::echo::Echoed;
use sys::Datagrams;

mod sys;

/// Whether it is to end is looked at so often.
const LOOK: Duration = Duration::from_millis(100);
/// Datagrams may wait in so much memory, as the kernel counts it: as many as rings of packets have room for.
const RECEIVE_BYTES: usize = 4 << 20;

/// Sends back what comes to an address, until `stop` is set.
///
/// # Errors
/// The address is in use, or not of this machine.
pub fn echo_udp(address: SocketAddr, stop: &AtomicBool) -> Result<Echoed> {
    let socket = UdpSocket::bind(address);
    let socket = socket.with_context(|| format!("cannot listen at {address}"))?;
    socket.set_read_timeout(Some(LOOK))?;
    // Who may not have more than the machine's limit has that.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BYTES).is_err() {
        let _ = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BYTES);
    }
    let mut datagrams = Datagrams::new();
    let mut echoed = Echoed {
        port: format!("udp:{address}"),
        received: 0,
        sent: 0,
    };
    while !stop.load(Ordering::Relaxed) {
        let count = match datagrams.receive(&socket) {
            Ok(count) => count,
            Err(error) if is_passing(error.kind()) => continue,
            Err(error) => return Err(error).context("nothing can be received"),
        };
        echoed.received += count as u64;
        echoed.sent += datagrams.send(&socket, count) as u64;
    }
    Ok(echoed)
}

fn is_passing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_datagram_comes_back_to_where_it_was_sent_from() {
        let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let stop = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&stop);
        let server = std::thread::spawn(move || echo_udp(address, &over).unwrap());
        let clients: Vec<UdpSocket> = (0..3)
            .map(|_| {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                socket.set_read_timeout(Some(LOOK)).unwrap();
                socket.connect(address).unwrap();
                socket
            })
            .collect();
        for number in 0..200u32 {
            let client = &clients[number as usize % 3];
            let sent = vec![number as u8; 1 + 7 * number as usize];
            let mut came = vec![0; 2048];
            // Until the server is there, nobody is.
            let count = loop {
                let _ = client.send(&sent);
                if let Ok(count) = client.recv(&mut came) {
                    break count;
                }
            };
            assert_eq!(came[..count], sent);
        }
        stop.store(true, Ordering::Relaxed);
        let echoed = server.join().unwrap();
        assert!(echoed.received >= 200, "{echoed}");
    }
}
