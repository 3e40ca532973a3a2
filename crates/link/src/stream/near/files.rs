//! The near end as a store of files that several lives share. Who asks says in each request who it is, and the store
//! knows whether that still holds: so it does not matter over which connection it is asked.

use std::rc::Rc;

use base::{Bytes, Error, FileId, Gathered, Incarnation, ReadPart, SegmentId, StoreId};
use wire::files::{FileAnswer, FileDescriptor, FileService, Life, LifeDescriptor, LifeSpace, NewFile};
use wire::frame::{Request, Value};
use wire::{LinkLost, LocalBoxFuture, Reply};

use super::{Inner, NearEnd, other};

impl Inner {
    async fn ask_files<T>(self: Rc<Self>, request: Request, value: impl FnOnce(Value) -> T) -> FileAnswer<T> {
        let live = match self.live().await {
            Ok(live) => live,
            // It was not asked.
            Err(error) => return Ok(Err(Error::retry(error.message))),
        };
        match live.ask(request).await? {
            Reply { result: Ok(Value::Lost(message)), .. } => Err(LinkLost { message }),
            Reply { result, .. } => Ok(result.map(value)),
        }
    }
}

impl NearEnd {
    fn files<T: 'static>(
        &self,
        request: Request,
        value: impl FnOnce(Value) -> T + 'static,
    ) -> LocalBoxFuture<'_, FileAnswer<T>> {
        Box::pin(self.0.clone().ask_files(request, value))
    }
}

fn done(value: Value) {
    match value {
        Value::Done => {}
        value => other(&value),
    }
}

fn space(value: Value) -> LifeSpace {
    match value {
        Value::Space(space) => space,
        value => other(&value),
    }
}

fn file(value: Value) -> Option<FileDescriptor> {
    match value {
        Value::File(file) => file,
        value => other(&value),
    }
}

fn files(value: Value) -> Vec<FileDescriptor> {
    match value {
        Value::Files(files) => files,
        value => other(&value),
    }
}

impl FileService for NearEnd {
    fn join(&self) -> LocalBoxFuture<'_, FileAnswer<(StoreId, Incarnation)>> {
        self.files(Request::Join, |value| match value {
            Value::Joined(store, incarnation) => (store, incarnation),
            value => other(&value),
        })
    }

    fn enter(&self, store: StoreId, life: Life) -> LocalBoxFuture<'_, FileAnswer<LifeSpace>> {
        self.files(Request::Enter { store, life }, space)
    }

    fn create(&self, life: Life, file: NewFile) -> LocalBoxFuture<'_, FileAnswer<(FileDescriptor, LifeSpace)>> {
        self.files(Request::CreateFile { life, file }, |value| match value {
            Value::Created(file, space) => (file, space),
            value => other(&value),
        })
    }

    fn append(&self, life: Life, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'_, FileAnswer<()>> {
        self.files(Request::Append { life, file, offset, data }, done)
    }

    fn read(
        &self,
        life: Life,
        file: FileId,
        copy: Option<u8>,
        offset: u64,
        len: u64,
    ) -> LocalBoxFuture<'_, FileAnswer<Bytes>> {
        self.files(Request::ReadFile { life, file, copy, offset, len }, |value| match value {
            Value::Parts(parts) => joined(parts),
            value => other(&value),
        })
    }

    fn repair_copy(
        &self,
        life: Life,
        file: FileId,
        copy: u8,
        offset: u64,
        data: Bytes,
    ) -> LocalBoxFuture<'_, FileAnswer<()>> {
        self.files(Request::RepairCopy { life, file, copy, offset, data }, done)
    }

    fn check_headers(&self, life: Life, file: FileId) -> LocalBoxFuture<'_, FileAnswer<u64>> {
        self.files(Request::CheckHeaders { life, file }, |value| match value {
            Value::Count(count) => count,
            value => other(&value),
        })
    }

    fn seal(&self, life: Life, file_id: FileId, length: u64) -> LocalBoxFuture<'_, FileAnswer<Option<FileDescriptor>>> {
        self.files(Request::Seal { life, file: file_id, length }, file)
    }

    fn delete(&self, life: Life, file: FileId) -> LocalBoxFuture<'_, FileAnswer<()>> {
        self.files(Request::DeleteFile { life, file }, done)
    }

    fn need_space(&self, life: Life, bytes: u64) -> LocalBoxFuture<'_, FileAnswer<LifeSpace>> {
        self.files(Request::NeedSpace { life, bytes }, space)
    }

    fn fence(&self, store: StoreId, incarnation: Incarnation) -> LocalBoxFuture<'_, FileAnswer<()>> {
        self.files(Request::Fence { store, incarnation }, done)
    }

    fn files_of(
        &self,
        store: StoreId,
        incarnation: Incarnation,
        after: FileId,
    ) -> LocalBoxFuture<'_, FileAnswer<Vec<FileDescriptor>>> {
        self.files(Request::FilesOf { store, incarnation, after }, files)
    }

    fn files_of_segment(
        &self,
        store: StoreId,
        segment: SegmentId,
        after: FileId,
    ) -> LocalBoxFuture<'_, FileAnswer<Vec<FileDescriptor>>> {
        self.files(Request::FilesOfSegment { store, segment, after }, files)
    }

    fn find(&self, store: StoreId, file_id: FileId) -> LocalBoxFuture<'_, FileAnswer<Option<FileDescriptor>>> {
        self.files(Request::FindFile { store, file: file_id }, file)
    }

    fn lives(&self, after: Incarnation) -> LocalBoxFuture<'_, FileAnswer<Vec<LifeDescriptor>>> {
        self.files(Request::Lives { after }, |value| match value {
            Value::Lives(lives) => lives,
            value => other(&value),
        })
    }
}

/// The bytes of parts, copied only where there are several: what a file has is said in one.
fn joined(mut parts: Vec<ReadPart>) -> Bytes {
    match (parts.pop(), parts.is_empty()) {
        (None, _) => Bytes::new(),
        (Some(ReadPart::Data(data)), true) => data,
        (Some(last), _) => {
            let mut all = Vec::new();
            for part in parts.into_iter().chain([last]) {
                match part {
                    ReadPart::Data(data) => all.extend_from_slice(&data),
                    ReadPart::Zeros(len) => all.resize(all.len() + len as usize, 0),
                }
            }
            all.into()
        }
    }
}
