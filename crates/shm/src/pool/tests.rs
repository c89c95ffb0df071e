//! Pools as the kernel has them. Places in them have tests of their own.

use std::os::fd::AsFd;

use super::*;

fn of_line(line: u32, bytes: u32) -> Descriptor {
    Descriptor {
        line,
        bytes,
        flags: 0,
        ticket: 0,
        sequence: 0,
    }
}

#[test]
fn what_the_publisher_writes_is_what_a_subscriber_reads() {
    let (fd, _) = create(POOL_STEP_BYTES).unwrap();
    let mut pool = Pool::attach(fd.as_fd(), POOL_STEP_BYTES).unwrap();
    let view = PoolView::attach(fd.as_fd(), POOL_STEP_BYTES).unwrap();
    let mut buffer = pool.take(100).unwrap();
    let message: Vec<u8> = (0..100).collect();
    pool.memory()
        .bytes_mut(&mut buffer)
        .copy_from_slice(&message);
    let seen = view
        .message(&of_line(buffer.line(), buffer.bytes()))
        .unwrap();
    assert_eq!(seen.to_vec(), message);
    assert_eq!(seen.u64_at(8), Some(0x0f0e_0d0c_0b0a_0908));
    assert_eq!((seen.u64_at(93), seen.u64_at(usize::MAX)), (None, None));
    assert_eq!(seen.copy_at(90, &mut [0; 20]), 10);
    // SAFETY: nobody writes there now.
    assert_eq!(unsafe { seen.as_slice() }, message);
    pool.give_back(buffer);
    assert_eq!(pool.used_bytes(), 0);
}

#[test]
fn descriptors_of_what_is_not_in_the_pool_are_refused() {
    let (fd, _) = create(POOL_STEP_BYTES).unwrap();
    let view = PoolView::attach(fd.as_fd(), POOL_STEP_BYTES).unwrap();
    for (line, bytes, is_inside) in [
        (0, 65_536, true),
        (0, 65_537, false),
        (1023, 64, true),
        (1023, 65, false),
        (1024, 0, true),
        (1025, 0, false),
        (u32::MAX, u32::MAX, false),
    ] {
        let found = view.message(&of_line(line, bytes));
        assert_eq!(found.is_some(), is_inside, "line {line}, {bytes} bytes");
    }
}

#[test]
#[should_panic(expected = "left == right")]
fn a_buffer_is_of_no_use_to_another_pool() {
    let pools = [(); 2].map(|()| {
        let (fd, _) = create(POOL_STEP_BYTES).unwrap();
        Pool::attach(fd.as_fd(), POOL_STEP_BYTES).unwrap()
    });
    let [mut own, mut other] = pools;
    other.give_back(own.take(1).unwrap());
}

#[test]
#[cfg_attr(miri, ignore = "seals are the kernel's")]
fn nobody_but_the_publisher_can_write_to_a_sealed_pool() {
    let (fd, _) = create(POOL_STEP_BYTES).unwrap();
    let mut pool = Pool::attach(fd.as_fd(), POOL_STEP_BYTES).unwrap();
    assert!(!is_sealed(fd.as_fd(), POOL_STEP_BYTES));
    seal(fd.as_fd()).unwrap();
    assert!(is_sealed(fd.as_fd(), POOL_STEP_BYTES) && !is_sealed(fd.as_fd(), 2 * POOL_STEP_BYTES));
    assert!(Pool::attach(fd.as_fd(), POOL_STEP_BYTES).is_err());
    let view = PoolView::attach(fd.as_fd(), POOL_STEP_BYTES).unwrap();
    let mut buffer = pool.take(8).unwrap();
    pool.memory().bytes_mut(&mut buffer).fill(7);
    let seen = view.message(&of_line(buffer.line(), 8)).unwrap();
    assert_eq!(seen.to_vec(), [7; 8]);
    // Its holes and its bytes are safe too.
    let file = std::fs::File::from(fd);
    assert!(file.set_len(0).is_err());
    assert!(std::os::unix::fs::FileExt::write_at(&file, &[1], 0).is_err());
}

#[test]
fn sizes_that_make_no_pool_are_refused() {
    for bytes in [0, 1, 65_535, POOL_BYTES_MAX + POOL_STEP_BYTES] {
        assert!(create(bytes).is_err(), "{bytes}");
    }
}
