//! A batch: the records of one append, from the moment they are gathered until they are durable.
//!
//! Intuition: the data of a write is copied once, into the buffer that goes to the disk, and is checksummed once,
//! there, right after the copy while it is in the processor's cache. The buffer is also what the segment caches show
//! afterwards. A checksum that does not match is noticed before the append, not at the recovery that would find a
//! rotten record in the middle of the journal: that one write fails, the others go on.
//!
//! Flow: [`Batch::new`], [`Batch::encode`] once for each attempt to append it (each time at another place),
//! [`Batch::deliver`] or [`Batch::fail`].

use base::units::round_up;
use base::{AlignedBuf, BLOCK, Bytes, Error, FileId, Incarnation, LogSequence, Result, SegmentId, SegmentSequence};

use super::format::{AppendHeader, HEADER_LEN, data_matches, put_record_header, record_header_len, records_checksum};
use super::{JournalRecord, Operation};
use crate::cache::{CacheExtent, CacheMemory, WriteIn};
use crate::way::Way;

/// Whom to tell what became of a record, and when its append passed what.
pub(crate) type OnDurable = Box<dyn FnOnce(Result<(CacheExtent, Way)>)>;

/// A record that was submitted.
pub(crate) struct Submitted {
    record: JournalRecord,
    on_durable: OnDurable,
    /// Whether its data did not match its checksums: it is not appended, and fails when its turn comes.
    damaged: bool,
}

/// Records that stand, or will stand, in one append.
pub(crate) struct Batch {
    submitted: Vec<Submitted>,
    /// The buffer of the last attempt, and where its data begins.
    buffer: Bytes,
    data_start: usize,
}

/// Where an append stands: what its header says of it, apart from what is in it. See [`AppendHeader`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The file.
    pub file: FileId,
    /// The life of the server.
    pub incarnation: Incarnation,
    /// Which journal of that life.
    pub log: u32,
    /// The file's place among the files of that journal.
    pub ordinal: u32,
    /// The log sequence of the file's first append.
    pub base: LogSequence,
    /// The append's own.
    pub sequence: LogSequence,
    /// Every append up to this one is durable.
    pub durable_through: LogSequence,
    /// Where in the file.
    pub offset: u64,
}

/// The bytes of an append of `records`, which match their checksums.
pub fn encode_append(place: &Place, records: Vec<JournalRecord>) -> Bytes {
    Batch::new(records.into_iter().map(|record| Submitted::new(record, |_| ())).collect()).encode(place)
}

/// How long an append becomes while records are added to it.
#[derive(Clone, Copy, Default)]
pub(crate) struct AppendSize {
    records: u64,
}

impl AppendSize {
    /// With one more record.
    pub(crate) fn with(self, record: &JournalRecord) -> AppendSize {
        AppendSize { records: self.records + record_bytes(record) }
    }

    /// Bytes in the file.
    pub(crate) fn padded(self) -> u64 {
        round_up(HEADER_LEN as u64 + self.records, BLOCK)
    }
}

/// Bytes of a record in an append.
pub(crate) fn record_bytes(record: &JournalRecord) -> u64 {
    record_header_len(record) as u64 + data_of(record).len() as u64
}

fn data_of(record: &JournalRecord) -> &[u8] {
    match &record.operation {
        Operation::Write { data, .. } => data,
        Operation::Discard => &[],
    }
}

impl Batch {
    pub(crate) fn new(submitted: Vec<Submitted>) -> Self {
        Batch { submitted, buffer: Bytes::new(), data_start: 0 }
    }

    /// A batch without records: its header says what is durable.
    pub(crate) fn marker() -> Self {
        Self::new(Vec::new())
    }

    /// Whether it has no records.
    pub(crate) fn is_marker(&self) -> bool {
        self.submitted.is_empty()
    }

    /// Bytes that it takes in the file.
    pub(crate) fn padded_len(&self) -> u64 {
        self.intact().fold(AppendSize::default(), AppendSize::with).padded()
    }

    /// The segments and sequences of its records, in order.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (SegmentId, SegmentSequence)> {
        self.intact().map(|record| (record.segment, record.sequence))
    }

    /// Its bytes for `place`, without the records whose data does not match their checksums.
    pub(crate) fn encode(&mut self, place: &Place) -> Bytes {
        loop {
            match self.try_encode(place) {
                Ok(buffer) => {
                    self.buffer = buffer.freeze();
                    self.point_records_into_buffer();
                    return self.buffer.clone();
                }
                Err(damaged) => self.submitted[damaged].damaged = true,
            }
        }
    }

    fn intact(&self) -> impl Iterator<Item = &JournalRecord> {
        self.submitted.iter().filter(|one| !one.damaged).map(|one| &one.record)
    }

    /// One pass over the records' headers, one over their data. `Err` is the first record whose data does not match.
    fn try_encode(&mut self, place: &Place) -> Result<AlignedBuf, usize> {
        let padded_len = self.padded_len();
        let mut buffer = AlignedBuf::with_capacity(padded_len as usize);
        buffer.extend_from_slice(&[0; HEADER_LEN]);
        for record in self.intact() {
            put_record_header(record, |bytes| buffer.extend_from_slice(bytes));
        }
        let headers_len = buffer.len();
        let header = AppendHeader {
            file: place.file,
            incarnation: place.incarnation,
            log: place.log,
            ordinal: place.ordinal,
            base: place.base,
            sequence: place.sequence,
            durable_through: place.durable_through,
            offset: place.offset,
            len: padded_len,
            headers_len: headers_len as u32,
            data_len: self.data_len() as u32,
            record_count: self.intact().count() as u32,
            records_checksum: records_checksum(&buffer[HEADER_LEN..]),
        };
        buffer[..HEADER_LEN].copy_from_slice(&header.encode());
        self.data_start = headers_len;
        for (index, one) in self.submitted.iter().enumerate().filter(|(_, one)| !one.damaged) {
            let Operation::Write { checksums, data } = &one.record.operation else { continue };
            let start = buffer.len();
            buffer.extend_from_slice(data);
            if !data_matches(one.record.segment, one.record.offset, &buffer[start..], checksums) {
                return Err(index);
            }
        }
        buffer.pad_to(BLOCK as usize);
        Ok(buffer)
    }

    fn data_len(&self) -> usize {
        self.intact().map(|record| data_of(record).len()).sum()
    }

    /// From here on the records show the buffer, and what they arrived in can be freed.
    fn point_records_into_buffer(&mut self) {
        let mut start = self.data_start;
        for one in self.submitted.iter_mut().filter(|one| !one.damaged) {
            if let Operation::Write { data, .. } = &mut one.record.operation {
                *data = self.buffer.slice(start..start + data.len());
                start += data.len();
            }
        }
    }

    /// Tells every record, in order, that it is durable.
    pub(crate) fn deliver(self, memory: &CacheMemory, way: Way) {
        let shared = CacheMemory::keeps(self.buffer.len() as u64, self.data_len() as u64).then(|| {
            let mut segments: Vec<SegmentId> = self.intact().map(|record| record.segment).collect();
            segments.sort_unstable();
            segments.dedup();
            memory.pin(self.buffer.clone(), segments)
        });
        let mut start = self.data_start;
        // All extents first: the shared buffer must not look sparse while it is being handed out.
        let durable: Vec<(Result<CacheExtent>, OnDurable)> = self
            .submitted
            .into_iter()
            .map(|Submitted { record, on_durable, damaged }| {
                let JournalRecord { segment, offset, sequence, .. } = record;
                let extent = match (record.operation, &shared) {
                    _ if damaged => Err(damaged_error(segment, offset, record.len)),
                    (Operation::Write { checksums, data }, Some(backing)) => {
                        let write = WriteIn { segment, offset, start, len: data.len() };
                        start += data.len();
                        Ok(CacheExtent::data(backing.clone(), write, checksums, sequence))
                    }
                    (operation, _) => Ok(CacheExtent::of_record(memory, JournalRecord { operation, ..record })),
                };
                (extent, on_durable)
            })
            .collect();
        durable.into_iter().for_each(|(extent, on_durable)| on_durable(extent.map(|extent| (extent, way))));
    }

    /// Tells every record, in order, that it failed.
    pub(crate) fn fail(self, error: &Error) {
        self.submitted.into_iter().for_each(|one| one.fail(error));
    }
}

impl Submitted {
    pub(crate) fn new(record: JournalRecord, on_durable: impl FnOnce(Result<(CacheExtent, Way)>) + 'static) -> Self {
        Submitted { record, on_durable: Box::new(on_durable), damaged: false }
    }

    pub(crate) fn record(&self) -> &JournalRecord {
        &self.record
    }

    /// Tells the record that it failed.
    pub(crate) fn fail(self, error: &Error) {
        (self.on_durable)(Err(error.clone()));
    }
}

fn damaged_error(segment: SegmentId, offset: u64, len: u64) -> Error {
    Error::internal(format!(
        "{len} bytes at {offset} of segment {segment} did not match the checksums that came with them, and were not \
         written: if this repeats, check the memory of this machine and of the client's"
    ))
}
