//! The library's name for those who are linked with it: programs go on working with every version that has the same number.
fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmillrace.so.0");
}
