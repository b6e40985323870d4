//! Little-endian fields at fixed offsets.

/// The 16 bits at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The 32 bits at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// The 64 bits at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// `N` bytes at `at`.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes were taken")
}

/// Writes `field` at `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// Writes ASCII text at `at`, padded with spaces or truncated to `width`.
pub(crate) fn put_text(bytes: &mut [u8], at: usize, width: usize, text: &str) {
    let field = &mut bytes[at..at + width];
    field.fill(b' ');
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
}

/// ASCII text of `width` bytes at `at` without its padding. Unprintable bytes become `?`.
pub(crate) fn text_at(bytes: &[u8], at: usize, width: usize) -> String {
    let field = &bytes[at..at + width];
    let padding = |byte: &u8| matches!(byte, b' ' | 0);
    let end = field.iter().rposition(|b| !padding(b)).map_or(0, |last| last + 1);
    let shown = |byte: &u8| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    };
    field[..end].iter().map(shown).collect()
}

/// Text of `width` bytes at `at` up to the first NUL, if it is UTF-8.
pub(crate) fn terminated_at(bytes: &[u8], at: usize, width: usize) -> Option<&str> {
    let field = &bytes[at..at + width];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok()
}
