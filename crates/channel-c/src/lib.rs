//! `libmillrace`: the verbs of `millrace-channel` for C. What each function does is said in `include/millrace.h`.
//!
//! A loan or message in C is a number and an address; what it is in Rust waits in its handle's list, so that one that is used twice, or of
//! another handle, is an error and no harm.

mod call;
mod pub_sub;
mod requests;
mod slab;
mod verbs;

/// What `millrace.h` promises: a handle is used by one thread at a time, whichever it is.
const _: () = {
    const fn goes_to_other_threads<T: Send>() {}
    goes_to_other_threads::<pub_sub::PublisherHandle>();
    goes_to_other_threads::<pub_sub::SubscriberHandle>();
    goes_to_other_threads::<requests::ClientHandle>();
    goes_to_other_threads::<requests::ServerHandle>();
};
