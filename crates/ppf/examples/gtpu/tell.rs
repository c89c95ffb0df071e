//! What is in a message, by names that a test translates to those of others.

use std::fmt::Write;
use std::net::IpAddr;

use millrace_wire::gtpu::extension::Content;
use millrace_wire::gtpu::nr_ran::{Assistance, DeliveryStatus, Frame, UserData};
use millrace_wire::gtpu::path::{self, ErrorIndication};
use millrace_wire::gtpu::pdu_session::{self, Direction, Measures};
use millrace_wire::gtpu::{
    ECHO_REQUEST, ECHO_RESPONSE, ERROR_INDICATION, G_PDU, Message, SUPPORTED_EXTENSIONS,
};

/// Names, each with a value; a name may be there more than once.
#[derive(Default)]
struct Told(Vec<(&'static str, String)>);

impl Told {
    fn add(&mut self, name: &'static str, value: impl ToString) {
        self.0.push((name, value.to_string()));
    }

    fn may(&mut self, name: &'static str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    fn flag(&mut self, name: &'static str, is_set: bool) {
        self.add(name, u8::from(is_set));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What is in a datagram, as a JSON object of lists of strings.
pub(crate) fn json(datagram: &[u8]) -> String {
    let mut told = Told::default();
    match Message::parse(datagram) {
        Ok(message) => tell(&message, &mut told),
        Err(error) => told.add("error", error.name()),
    }
    let mut names: Vec<&str> = told.0.iter().map(|one| one.0).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    let lists = names.iter().map(|name| {
        let values = told.0.iter().filter(|one| one.0 == *name);
        let values: Vec<String> = values.map(|one| format!("\"{}\"", one.1)).collect();
        format!("\"{name}\": [{}]", values.join(", "))
    });
    format!("{{{}}}", lists.collect::<Vec<_>>().join(", "))
}

fn tell(message: &Message<'_>, told: &mut Told) {
    told.add("message", message.kind);
    told.add("teid", message.teid);
    told.may("sequence", message.sequence);
    told.may("npdu", message.npdu);
    let mut has_any = false;
    for extension in message.extensions {
        has_any = true;
        told.add("extension", extension.kind);
        match Content::parse(&extension) {
            Some(content) => tell_content(&content, told),
            None => told.add("error", format!("extension {:#04x}", extension.kind)),
        }
    }
    if has_any {
        told.add("extension", 0);
    }
    match message.kind {
        G_PDU if !message.body.is_empty() => told.add("packet", hex(message.body)),
        // Requests have none in TS 29.281, and some peers send it.
        ECHO_REQUEST | ECHO_RESPONSE => {
            if let [14, counter, ..] = message.body {
                told.add("recovery", counter);
            }
        }
        ERROR_INDICATION => match ErrorIndication::parse(message.body) {
            Ok(lost) => {
                told.add("lost", lost.teid);
                match lost.peer {
                    IpAddr::V4(peer) => told.add("peer4", peer),
                    IpAddr::V6(peer) => told.add("peer6", peer),
                }
            }
            Err(error) => told.add("error", error.name()),
        },
        SUPPORTED_EXTENSIONS => match path::parse_supported_extensions(message.body) {
            Ok(kinds) => kinds.iter().for_each(|kind| told.add("supported", kind)),
            Err(error) => told.add("error", error.name()),
        },
        _ => {}
    }
}

fn tell_content(content: &Content<'_>, told: &mut Told) {
    match content {
        Content::UdpPort(port) => told.add("udp_port", port),
        Content::Pdcp(number) => told.add("pdcp", number),
        Content::LongPdcp(number) => told.add("long_pdcp", number),
        Content::ServiceClass(class) => told.add("service_class", class),
        Content::Ran(bytes) => told.add("ran", hex(bytes)),
        Content::XwRan(bytes) => told.add("xw_ran", hex(bytes)),
        Content::NrRan(Frame::UserData(frame)) => tell_user_data(frame, told),
        Content::NrRan(Frame::Delivery(frame)) => tell_delivery(frame, told),
        Content::NrRan(Frame::Assistance(frame)) => tell_assistance(frame, told),
        Content::PduSession(frame, measures) => tell_session(frame, measures, told),
        Content::Unknown(_) => {}
    }
}

fn tell_session(frame: &pdu_session::Frame, measures: &Measures, told: &mut Told) {
    told.add(
        "session.kind",
        u8::from(frame.direction == Direction::Uplink),
    );
    told.add("session.qfi", frame.qfi);
    match measures {
        Measures::Downlink {
            sending,
            sequence,
            multicast,
        } => {
            told.flag("session.ppp", frame.paging_policy.is_some());
            told.flag("session.rqi", frame.reflective);
            told.may("session.ppi", frame.paging_policy);
            told.may("session.down_sending", *sending);
            told.may("session.down_sequence", *sequence);
            told.may("session.multicast", *multicast);
        }
        Measures::Uplink {
            times,
            downlink_delay,
            uplink_delay,
            sequence,
            network_delay,
            has_pdcp_delay,
        } => {
            told.may("session.sent", times.map(|times| times.sent));
            told.may("session.received", times.map(|times| times.received));
            told.may("session.up_sending", times.map(|times| times.sending));
            told.may("session.down_delay", *downlink_delay);
            told.may("session.up_delay", *uplink_delay);
            told.may("session.up_sequence", *sequence);
            told.may("session.network_delay", *network_delay);
            told.may("session.pdcp_delay", has_pdcp_delay.map(u8::from));
        }
    }
}

fn tell_user_data(frame: &UserData<'_>, told: &mut Told) {
    told.add("radio.kind", 0);
    told.add("radio.sequence", frame.sequence);
    told.flag("radio.polls", frame.polls);
    told.flag("radio.wants_out_of_sequence", frame.wants_out_of_sequence);
    told.flag("radio.has_report", frame.report_up_to.is_some());
    told.flag("radio.has_data", frame.has_data);
    told.flag("radio.polls_assistance", frame.polls_assistance);
    told.flag("radio.again", frame.again);
    told.may("radio.flush", frame.flush);
    for (first, count) in frame.discard.iter() {
        told.add("radio.discard_first", first);
        told.add("radio.discard_count", count);
    }
    told.may("radio.report_up_to", frame.report_up_to);
}

fn tell_delivery(frame: &DeliveryStatus<'_>, told: &mut Told) {
    told.add("radio.kind", 1);
    told.add("radio.desired_bytes", frame.desired_bytes);
    told.may("radio.desired_rate", frame.desired_rate);
    told.flag("radio.final", frame.is_final);
    for (first, last) in frame.lost.iter().flat_map(|lost| lost.iter()) {
        told.add("radio.lost_first", first);
        told.add("radio.lost_last", last);
    }
    told.may("radio.delivered", frame.delivered);
    told.may("radio.transmitted", frame.transmitted);
    told.may("radio.cause", frame.cause);
    told.may("radio.delivered_again", frame.delivered_again);
    told.may("radio.transmitted_again", frame.transmitted_again);
}

fn tell_assistance(frame: &Assistance<'_>, told: &mut Told) {
    told.add("radio.kind", 2);
    told.flag("radio.duplicates", frame.duplication.is_some());
    told.flag("radio.duplication", frame.duplication == Some(true));
    for (kind, content) in frame.fields.iter().flat_map(|fields| fields.iter()) {
        told.add("radio.field_kind", kind);
        told.add("radio.field", hex(content));
    }
    told.may("radio.up_delay", frame.uplink_delay);
    told.may("radio.down_delay", frame.downlink_delay);
}
