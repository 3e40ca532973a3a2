//! Little-endian fields of a body, written and read in the same order.
//!
//! Reading never panics and never allocates for more than the bytes that are there: frames come from other processes.

use bytes::BufMut;

/// Longest text in a frame, in bytes.
pub(super) const TEXT_MAX: usize = 4096;

/// Appends a text: its length in two bytes, and as much of it as [`TEXT_MAX`] allows.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_text_within(out, text, TEXT_MAX);
}

/// Appends a text, and of it no more bytes than `most`, which is at most [`TEXT_MAX`].
pub(super) fn put_text_within(out: &mut Vec<u8>, text: &str, most: usize) {
    let ends = (0..=text.len().min(most)).rev().find(|&end| text.is_char_boundary(end));
    let text = &text[..ends.unwrap_or_default()];
    out.put_u16_le(text.len() as u16);
    out.put_slice(text.as_bytes());
}

/// What is left of a body. Every method gives `None` where the bytes end or are not what they must be.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// A truth, which is 0 or 1.
    pub(super) fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// A text, as [`put_text`] writes it.
    pub(super) fn text(&mut self) -> Option<String> {
        let len = usize::from(self.u16()?);
        let bytes = (len <= TEXT_MAX).then(|| self.slice(len))??;
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }

    /// Items up to the end.
    pub(super) fn all<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        while !self.0.is_empty() {
            items.push(item(self)?);
        }
        Some(items)
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
