//! A way to the store on which answers are lost, after what was asked was done or before.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{Bytes, FileId, Gathered, Incarnation, Prng, SegmentId, StoreId};
use runtime::Handle;
use wire::files::{FileAnswer, FileDescriptor, FileService, Life, LifeDescriptor, LifeSpace, NewFile};
use wire::{LinkLost, LocalBoxFuture};

use crate::model::Model;

/// How many answers were lost on purpose, of each kind of request.
#[derive(Default)]
pub struct Lost {
    pub lost: [Cell<u64>; Lost::KINDS],
    /// Creations among them that had made a file.
    pub created: Cell<u64>,
    /// Offsets of appends, in the order in which they came.
    pub appended: Rc<RefCell<Vec<u64>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Join,
    Enter,
    Create,
    Append,
    Read,
    Seal,
    Delete,
    Fence,
    Other,
}

impl Lost {
    pub const KINDS: usize = Asked::Other as usize + 1;

    pub fn counts(&self) -> [u64; Lost::KINDS] {
        self.lost.each_ref().map(Cell::get)
    }
}

/// See the module.
pub struct Forgetful {
    /// What is behind it now.
    pub behind: RefCell<Rc<dyn FileService>>,
    pub prng: RefCell<Prng>,
    pub forgets_one_in: u64,
    pub lost: Rc<Lost>,
    /// Of these the next answer is lost.
    pub next: RefCell<Vec<Asked>>,
    /// So late come the answers to creations.
    pub late: Option<(Handle, Duration)>,
    /// When it is stopped, nothing is lost any more.
    pub model: Rc<Model>,
}

impl Forgetful {
    fn is_lost(&self, asked: Asked) -> bool {
        let may_forget = self.forgets_one_in > 0 && !self.model.is_stopped();
        let at = self.next.borrow().iter().position(|next| *next == asked);
        let is_next = at.map(|at| self.next.borrow_mut().remove(at)).is_some();
        let is_lost = is_next || may_forget && self.prng.borrow_mut().one_in(self.forgets_one_in);
        if is_lost {
            let lost = &self.lost.lost[asked as usize];
            lost.set(lost.get() + 1);
        }
        is_lost
    }

    fn way<'a, T: 'a>(
        &'a self,
        asked: Asked,
        answer: impl Future<Output = FileAnswer<T>> + 'a,
        on_lost: impl FnOnce(&T) + 'a,
    ) -> LocalBoxFuture<'a, FileAnswer<T>> {
        Box::pin(async move {
            let answer = answer.await?;
            if !self.is_lost(asked) {
                return Ok(answer);
            }
            if let Ok(answer) = &answer {
                on_lost(answer);
            }
            Err(LinkLost { message: "the answer was lost".into() })
        })
    }
}

macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty, $asked:ident;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> LocalBoxFuture<'_, FileAnswer<$answer>> {
            let behind = self.behind.borrow().clone();
            self.way(Asked::$asked, async move { behind.$name($($argument),*).await }, |_| {})
        })*
    };
}

impl FileService for Forgetful {
    fn create(&self, life: Life, file: NewFile) -> LocalBoxFuture<'_, FileAnswer<(FileDescriptor, LifeSpace)>> {
        let behind = self.behind.borrow().clone();
        let created = async move {
            let created = behind.create(life, file).await;
            if let Some((handle, late)) = &self.late {
                handle.sleep(*late).await;
            }
            created
        };
        self.way(Asked::Create, created, |_| self.lost.created.set(self.lost.created.get() + 1))
    }

    fn append(&self, life: Life, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'_, FileAnswer<()>> {
        self.lost.appended.borrow_mut().push(offset);
        let behind = self.behind.borrow().clone();
        self.way(Asked::Append, async move { behind.append(life, file, offset, data).await }, |()| {})
    }

    passed_on! {
        join() -> (StoreId, Incarnation), Join;
        read(life: Life, file: FileId, copy: Option<u8>, offset: u64, len: u64) -> Bytes, Read;
        enter(store: StoreId, life: Life) -> LifeSpace, Enter;
        repair_copy(life: Life, file: FileId, copy: u8, offset: u64, data: Bytes) -> (), Other;
        check_headers(life: Life, file: FileId) -> u64, Other;
        seal(life: Life, file: FileId, length: u64) -> Option<FileDescriptor>, Seal;
        delete(life: Life, file: FileId) -> (), Delete;
        need_space(life: Life, bytes: u64) -> LifeSpace, Other;
        fence(store: StoreId, incarnation: Incarnation) -> (), Fence;
        files_of(store: StoreId, incarnation: Incarnation, after: FileId) -> Vec<FileDescriptor>, Other;
        files_of_segment(store: StoreId, segment: SegmentId, after: FileId) -> Vec<FileDescriptor>, Other;
        find(store: StoreId, file: FileId) -> Option<FileDescriptor>, Other;
        lives(after: Incarnation) -> Vec<LifeDescriptor>, Other;
    }
}
