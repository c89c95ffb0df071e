use super::*;

#[test]
fn fields_are_where_the_specification_has_them() {
    let descriptor = Descriptor {
        address: 0x0807_0605_0403_0201,
        length: 0x0c0b_0a09,
        flags: 0x0e0d,
        link: 0x100f,
    };
    let bytes = |words: [u64; 2]| words.map(u64::to_le_bytes);
    let wanted = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16]];
    assert_eq!(bytes(descriptor.emit_split()), wanted);
    let wanted = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 15, 16, 13, 14]];
    assert_eq!(bytes(descriptor.emit_packed()), wanted);
    let split = Descriptor::parse_split(descriptor.emit_split());
    let packed = Descriptor::parse_packed(descriptor.emit_packed());
    assert_eq!((split, packed), (descriptor, descriptor));
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let header = NetHeader::parse(bytes);
    assert_eq!(
        (header.flags, header.segment_kind, header.buffers),
        (1, 2, 0x0c0b)
    );
    assert_eq!(header.emit(), bytes);
    assert_eq!((available_bytes(256), used_bytes(256)), (518, 2054));
}

#[test]
fn an_event_is_passed_once_wherever_the_indices_are() {
    for begin in [0, 1000, u16::MAX - 3] {
        let at = |steps: u16| begin.wrapping_add(steps);
        assert!(has_passed(at(2), at(3), at(0)));
        assert!(has_passed(at(0), at(1), at(0)));
        assert!(!has_passed(at(3), at(3), at(0)));
        assert!(!has_passed(at(2), at(6), at(3)));
        assert!(has_passed(at(5), at(6), at(3)));
        assert!(!has_passed(at(9), at(6), at(3)));
    }
}
