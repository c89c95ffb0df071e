//! Streams verified bytes over TCP connections until it is told to finish, or killed.
//!
//!     traffic serve VARIANT LEDGER                       prints its port, serves until killed
//!     traffic connect VARIANT LEDGER PORT ORDER...       one connection per order, exits when all have ended
//!
//! What each end sent and received, and how it ended, goes to the ledger: a file that the runner maps as well, so that
//! a killed process has still said all that it knew.
//!
//! Reading order: `pattern` (the bytes), `ledger`, `order` (what a connection is to do), `flow` (one direction of one
//! end), `blocking`, `events`, `forked` (ways of doing it), `sys`.

mod blocking;
mod events;
mod flow;
mod forked;
mod ledger;
mod order;
mod pattern;
mod sys;

use std::io::{Error, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use flow::End;
use ledger::{Ledger, Side, code};
use order::Order;

/// How a program uses its sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// Blocking calls; a thread per direction, or one thread where the ends take turns.
    Blocking,
    /// One thread and `poll`.
    Poll,
    /// One thread and a level-triggered epoll set.
    Epoll,
    /// One thread and an edge-triggered epoll set.
    Edge,
    /// A process per connection, which goes on as `Blocking`; the process that accepted lets go.
    Forked,
    /// Two processes that hold the connection together: one each for reading and writing, or one idle and one working.
    Shared,
}

fn variant(name: &str) -> Option<Variant> {
    match name {
        "blocking" => Some(Variant::Blocking),
        "poll" => Some(Variant::Poll),
        "epoll" => Some(Variant::Epoll),
        "edge" => Some(Variant::Edge),
        "forked" => Some(Variant::Forked),
        "shared" => Some(Variant::Shared),
        _ => None,
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["serve", name, path] => variant(name)
            .map(|variant| Ledger::open(path).and_then(|ledger| serve(variant, ledger))),
        ["connect", name, path, port, orders @ ..] => variant(name).map(|variant| {
            let orders: Option<Vec<Order>> = orders.iter().map(|text| Order::parse(text)).collect();
            let (Some(orders), Ok(port)) = (orders, port.parse()) else {
                return Err(Error::other("a port or an order cannot be read"));
            };
            Ledger::open(path).map(|ledger| connect(variant, ledger, port, orders))
        }),
        _ => None,
    };
    match done {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            eprintln!("traffic: {error}");
            std::process::exit(1);
        }
        None => {
            eprintln!("usage: traffic serve VARIANT LEDGER | connect VARIANT LEDGER PORT ORDER...");
            std::process::exit(2);
        }
    }
}

fn serve(variant: Variant, ledger: &'static Ledger) -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    sys::ignore_children();
    match variant {
        Variant::Poll => events::serve(&listener, ledger, events::Kind::Poll),
        Variant::Epoll => events::serve(&listener, ledger, events::Kind::Level),
        Variant::Edge => events::serve(&listener, ledger, events::Kind::Edge),
        Variant::Blocking => loop {
            let (stream, _) = listener.accept()?;
            std::thread::spawn(move || accepted(&stream, ledger, blocking::run));
        },
        Variant::Forked | Variant::Shared => loop {
            let (stream, _) = listener.accept()?;
            let run = if variant == Variant::Forked {
                blocking::run
            } else {
                forked::run
            };
            forked::start(|| {
                sys::default_children();
                sys::close(listener.as_raw_fd());
                accepted(&stream, ledger, run);
            });
        },
    }
}

/// Reads a connection's order from it, then does what that says.
fn accepted(stream: &TcpStream, ledger: &'static Ledger, run: fn(&TcpStream, End)) {
    if let Some(order) = Order::receive(stream) {
        let end = End::new(order, Side::Server, ledger);
        run(stream, end);
    }
}

fn connect(variant: Variant, ledger: &'static Ledger, port: u16, orders: Vec<Order>) {
    for order in &orders {
        ledger
            .slot(order.slot)
            .side(Side::Client)
            .main
            .set(u64::from(std::process::id()));
    }
    match variant {
        Variant::Poll => events::connect(opened(ledger, port, orders), events::Kind::Poll),
        Variant::Epoll => events::connect(opened(ledger, port, orders), events::Kind::Level),
        Variant::Edge => events::connect(opened(ledger, port, orders), events::Kind::Edge),
        Variant::Blocking => {
            let threads: Vec<_> = opened(ledger, port, orders)
                .into_iter()
                .map(|(stream, end)| std::thread::spawn(move || blocking::run(&stream, end)))
                .collect();
            for thread in threads {
                let _ = thread.join();
            }
        }
        Variant::Forked | Variant::Shared => {
            let run = if variant == Variant::Forked {
                blocking::run
            } else {
                forked::run
            };
            let children: Vec<_> = orders
                .into_iter()
                .map(|order| {
                    forked::start(|| {
                        for (stream, end) in opened(ledger, port, vec![order]) {
                            run(&stream, end);
                        }
                    })
                })
                .collect();
            children.into_iter().for_each(sys::wait_for);
        }
    }
}

/// Connects once per order. What cannot be connected is noted as ended.
fn opened(ledger: &'static Ledger, port: u16, orders: Vec<Order>) -> Vec<(TcpStream, End)> {
    let mut streams = Vec::new();
    for order in orders {
        let side = ledger.slot(order.slot).side(Side::Client);
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .and_then(|stream| order.transmit(&stream).map(|()| stream))
        {
            Ok(stream) => streams.push((stream, End::new(order, Side::Client, ledger))),
            Err(error) => {
                side.read_end.set(code::of(&error));
                side.write_end.set(code::of(&error));
            }
        }
    }
    streams
}
