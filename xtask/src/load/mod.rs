//! Small load generators and servers, for workloads that no packaged program makes. They are run by the
//! benchmarks as processes of their own, on either road, like any other program.

mod echo;
mod memcached;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lexopt::prelude::{Long, Value, ValueExt};

/// `load hog | echo | idle | memcached`, with options.
pub(crate) fn run(arguments: &mut lexopt::Parser) -> Result<()> {
    let Some(Value(kind)) = arguments.next()? else {
        bail!("load needs a kind of load")
    };
    let (mut port, mut connections, mut seconds) = (0, 1, 1);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("port") => port = arguments.value()?.parse()?,
            Long("connections") => connections = arguments.value()?.parse()?,
            Long("seconds") => seconds = arguments.value()?.parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    match kind.to_str().context("a kind of load is a word")? {
        "hog" => hog(),
        "echo" => echo::serve(server),
        "idle" => echo::idle(server, connections),
        "memcached" => memcached::run(server, connections, Duration::from_secs(seconds)),
        other => bail!("there is no load of the kind {other}"),
    }
}

/// Uses a processor for ever.
fn hog() -> ! {
    loop {
        std::hint::black_box(());
    }
}
