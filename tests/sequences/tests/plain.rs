//! The tester against itself: the plain kernel must agree with the plain kernel.

use std::process::Command;

fn sequences(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sequences"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

#[test]
fn the_plain_kernel_agrees_with_itself() {
    let (agrees, report) = sequences(&["--seeds", "0..60"]);
    assert!(agrees, "{report}");
}

#[test]
fn kept_sequences_run() {
    let (agrees, report) = sequences(&["--kept", "."]);
    assert!(agrees, "{report}");
}

#[test]
fn a_program_that_behaves_differently_is_found() {
    // So few descriptors that not even the tester's own can be opened.
    let (agrees, report) = sequences(&["--under", "prlimit --nofile=602", "--seeds", "0..1"]);
    assert!(!agrees, "{report}");
    assert!(report.contains("sequence 0 differs"), "{report}");
}
