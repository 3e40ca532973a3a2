//! Contents of blocks under small numbers, so that a state stays small.

use base::{BLOCK, Bytes, Map};

use super::disk::Block;

/// Every content that was ever seen, by number. Zero is zeros.
pub(super) struct Contents {
    bytes: Vec<Bytes>,
    numbers: Map<Bytes, Block>,
}

impl Contents {
    pub(super) fn new() -> Contents {
        let mut contents = Contents { bytes: Vec::new(), numbers: Map::default() };
        contents.number(Bytes::from(vec![0; BLOCK as usize]));
        contents
    }

    /// The number of a content.
    pub(super) fn number(&mut self, bytes: Bytes) -> Block {
        assert_eq!(bytes.len() as u64, BLOCK);
        if let Some(number) = self.numbers.get(&bytes) {
            return *number;
        }
        let number = Block::try_from(self.bytes.len()).expect("a model has few contents");
        self.numbers.insert(bytes.clone(), number);
        self.bytes.push(bytes);
        number
    }

    /// The numbers of blocks that stand one after the other.
    pub(super) fn numbers(&mut self, bytes: &Bytes) -> Vec<Block> {
        let blocks = (0..bytes.len()).step_by(BLOCK as usize);
        blocks.map(|at| self.number(bytes.slice(at..at + BLOCK as usize))).collect()
    }

    /// A block of which only the beginning was written.
    pub(super) fn torn(&mut self, block: Block) -> Block {
        let mut torn = vec![0; BLOCK as usize];
        torn[..64].copy_from_slice(&self.bytes(block)[..64]);
        self.number(Bytes::from(torn))
    }

    pub(super) fn bytes(&self, block: Block) -> Bytes {
        self.bytes[block as usize].clone()
    }
}
