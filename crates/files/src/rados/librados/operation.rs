//! Operations on one object: built and submitted on the loop, completed by a thread of the library.
//!
//! What the library writes to, and what tells the loop, is in one allocation ([`Pending`]), which the callback gets and takes
//! apart; if an operation cannot be submitted, the callback is never called, and it is taken apart at once.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use base::AlignedBuf;
use runtime::sync::foreign;

use super::super::objects::{Change, Condition, Effect, Look};
use super::library::{Context, Library, Raw, c_text};
use crate::LocalBoxFuture;

/// `LIBRADOS_OPERATION_FULL_TRY`: on a full pool it fails, and does not wait until there is room.
const FULL_TRY: c_int = 64;
/// `LIBRADOS_OPERATION_FULL_FORCE`: it is done on a full pool, too, as far as an OSD has any room.
const FULL_FORCE: c_int = 128;
/// `LIBRADOS_OPERATION_BALANCE_READS`: any OSD with a copy is asked, as chance has it.
const BALANCE_READS: c_int = 1;
/// `LIBRADOS_CREATE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 1;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
const EQUAL: u8 = 1;

/// The outcome of an operation: what it gives, or the library's code, below zero.
type Outcome<T> = Result<T, c_int>;
type Answer<T> = LocalBoxFuture<'static, Outcome<T>>;

/// An operation that is under way.
struct Pending<T, W> {
    library: &'static Library,
    /// What the library fills.
    target: W,
    /// Makes the outcome of that, and of the library's code.
    finish: fn(&'static Library, W, c_int) -> Outcome<T>,
    sender: futures_channel::oneshot::Sender<Outcome<T>>,
}

/// Called by the library, once.
///
/// # Safety
/// `argument` is a `Pending<T, W>` out of its box, that nobody else has.
unsafe extern "C" fn done<T, W>(completion: Raw, argument: *mut c_void) {
    // SAFETY: see above.
    let pending = unsafe { Box::from_raw(argument.cast::<Pending<T, W>>()) };
    let Pending { library, target, finish, sender } = *pending;
    // SAFETY: the completion is the library's, and released after its last use.
    let code = unsafe {
        let code = (library.rados_aio_get_return_value)(completion);
        (library.rados_aio_release)(completion);
        code
    };
    // Nobody may wait for it any more.
    let _ = sender.send(finish(library, target, code));
}

/// Submits an operation: `submit` gets the completion and the target, which stays where it is until the operation is done.
fn begin<T: Send + 'static, W: Send + 'static>(
    library: &'static Library,
    target: W,
    finish: fn(&'static Library, W, c_int) -> Outcome<T>,
    submit: impl FnOnce(Raw, &mut W) -> c_int,
) -> Answer<T> {
    let (sender, receiver) = foreign();
    let pending = Box::into_raw(Box::new(Pending { library, target, finish, sender }));
    let mut completion = ptr::null_mut();
    // SAFETY: `pending` is alive until the callback or the lines below take it apart. The callback is not called before the
    // operation was submitted, and then the target is the library's: the reference ends before that, inside of `submit`.
    unsafe {
        (library.rados_aio_create_completion2)(pending.cast(), done::<T, W>, &mut completion);
        let code = submit(completion, &mut *ptr::addr_of_mut!((*pending).target));
        if code < 0 {
            (library.rados_aio_release)(completion);
            let Pending { target, sender, .. } = *Box::from_raw(pending);
            let _ = sender.send(finish(library, target, code));
        }
    }
    Box::pin(async move { receiver.await.unwrap_or(Err(-libc::ESHUTDOWN)) })
}

/// Does a change. Its bytes are copied before this returns.
pub(super) fn change(context: &Context, object: &str, change: &Change) -> Answer<()> {
    let (library, object) = (context.functions, c_text(object));
    // SAFETY: the operation is used here only, and whatever is given to it is copied by it (`bufferlist::append`).
    let operation = unsafe {
        let operation = (library.rados_create_write_op)();
        for condition in &change.conditions {
            add_condition(library, operation, condition);
        }
        for effect in &change.effects {
            add_effect(library, operation, effect);
        }
        operation
    };
    let finish = |_: &'static Library, (): (), code: c_int| if code < 0 { Err(code) } else { Ok(()) };
    let flags = if change.is_for_use { FULL_TRY } else { FULL_FORCE };
    let submit = |completion, _: &mut ()| {
        // SAFETY: all of it is alive; the name is copied.
        unsafe {
            (library.rados_aio_write_op_operate)(
                operation,
                context.raw,
                completion,
                object.as_ptr(),
                ptr::null_mut(),
                flags,
            )
        }
    };
    let done = begin(library, (), finish, submit);
    // SAFETY: its content has gone over to what was submitted.
    unsafe { (library.rados_release_write_op)(operation) };
    done
}

/// # Safety
/// `operation` is a write operation that was not submitted yet.
unsafe fn add_condition(library: &Library, operation: Raw, condition: &Condition) {
    // SAFETY: what is named lives for the call, and is copied.
    unsafe {
        match condition {
            Condition::Absent => (library.rados_write_op_create)(operation, EXCLUSIVE, ptr::null()),
            Condition::Present => (library.rados_write_op_assert_exists)(operation),
            Condition::Attribute(name, value) => {
                let name = c_text(name);
                (library.rados_write_op_cmpxattr)(operation, name.as_ptr(), EQUAL, chars(value), value.len());
            }
            Condition::Entry(key, value) => compare_entry(library, operation, key, value),
            // An OSD compares what is not there as one without a value (`CEPH_OSD_OP_OMAP_CMP`).
            Condition::NoEntry(key) => compare_entry(library, operation, key, &[]),
        }
    }
}

/// # Safety
/// As [`add_condition`].
unsafe fn compare_entry(library: &Library, operation: Raw, key: &str, value: &[u8]) {
    let (name, is) = (chars(key.as_bytes()), chars(value));
    // SAFETY: what is named lives for the call, and is copied.
    unsafe { (library.rados_write_op_omap_cmp2)(operation, name, EQUAL, is, key.len(), value.len(), ptr::null_mut()) };
}

/// # Safety
/// As [`add_condition`].
unsafe fn add_effect(library: &Library, operation: Raw, effect: &Effect) {
    // SAFETY: what is named lives for the call, and is copied.
    unsafe {
        match effect {
            Effect::Write { offset, data } => {
                let mut at = *offset;
                for part in data.parts() {
                    (library.rados_write_op_write)(operation, chars(part), part.len(), at);
                    at += part.len() as u64;
                }
            }
            Effect::SetAttribute(name, value) => {
                let name = c_text(name);
                (library.rados_write_op_setxattr)(operation, name.as_ptr(), chars(value), value.len());
            }
            Effect::SetEntry(key, value) => {
                let (keys, values) = ([chars(key.as_bytes())], [chars(value)]);
                let (key_lens, value_lens) = ([key.len()], [value.len()]);
                let (key_lens, value_lens) = (key_lens.as_ptr(), value_lens.as_ptr());
                (library.rados_write_op_omap_set2)(operation, keys.as_ptr(), values.as_ptr(), key_lens, value_lens, 1);
            }
            Effect::RemoveEntry(key) => {
                let (keys, lens) = ([chars(key.as_bytes())], [key.len()]);
                (library.rados_write_op_omap_rm_keys2)(operation, keys.as_ptr(), lens.as_ptr(), 1);
            }
            Effect::Remove => (library.rados_write_op_remove)(operation),
        }
    }
}

fn chars(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

/// Reads bytes.
pub(super) fn read(context: &Context, object: &str, offset: u64, len: usize) -> Answer<AlignedBuf> {
    let (library, raw, object) = (context.functions, context.raw, c_text(object));
    let finish = |_: &'static Library, mut target: AlignedBuf, code: c_int| {
        let Ok(read) = usize::try_from(code) else { return Err(code) };
        // SAFETY: the library has written so many bytes, at most as many as were asked for.
        unsafe { target.set_written(read) };
        Ok(target)
    };
    begin(library, AlignedBuf::with_capacity(len), finish, |completion, target| {
        // SAFETY: the memory of the target stays where it is until the operation is done.
        unsafe {
            (library.rados_aio_read)(raw, object.as_ptr(), completion, target.as_target().as_ptr().cast(), len, offset)
        }
    })
}

/// What the library fills for a read of any copy.
struct Reading {
    target: AlignedBuf,
    read: usize,
    code: c_int,
}

/// Reads bytes of any copy.
pub(super) fn read_any(context: &Context, object: &str, offset: u64, len: usize) -> Answer<AlignedBuf> {
    let (library, raw, object) = (context.functions, context.raw, c_text(object));
    // SAFETY: a new operation.
    let operation = unsafe { (library.rados_create_read_op)() };
    let finish = |_: &'static Library, Reading { mut target, read, code: of_read }: Reading, code: c_int| {
        if code < 0 || of_read < 0 {
            return Err(code.min(of_read));
        }
        // SAFETY: the library has written so many bytes, at most as many as were asked for.
        unsafe { target.set_written(read) };
        Ok(target)
    };
    let reading = Reading { target: AlignedBuf::with_capacity(len), read: 0, code: 0 };
    let read = begin(library, reading, finish, |completion, reading| {
        // SAFETY: all of what the library fills stays where it is until the operation is done; the name is copied.
        unsafe {
            let target = reading.target.as_target().as_ptr().cast();
            (library.rados_read_op_read)(operation, offset, len, target, &mut reading.read, &mut reading.code);
            (library.rados_aio_read_op_operate)(operation, raw, completion, object.as_ptr(), BALANCE_READS)
        }
    });
    // SAFETY: its content has gone over to what was submitted.
    unsafe { (library.rados_release_read_op)(operation) };
    read
}

/// What the library fills for a look.
struct Looking {
    attributes: Raw,
    attributes_code: c_int,
    entries: Raw,
    entries_code: c_int,
    has_more: u8,
    wants_entries: bool,
}

// SAFETY: the iterators are used by one thread at a time: first by the library, then by its callback.
unsafe impl Send for Looking {}

/// Reads attributes and entries.
pub(super) fn look(context: &Context, object: &str, after: &str, max: usize) -> Answer<Look> {
    let (library, raw) = (context.functions, context.raw);
    let (object, after) = (c_text(object), c_text(after));
    // SAFETY: a new operation.
    let operation = unsafe { (library.rados_create_read_op)() };
    let target = Looking {
        attributes: ptr::null_mut(),
        attributes_code: 0,
        entries: ptr::null_mut(),
        entries_code: 0,
        has_more: 0,
        wants_entries: max > 0,
    };
    let looked = begin(library, target, finish_look, |completion, target| {
        // SAFETY: the target stays where it is until the operation is done; names are copied.
        unsafe {
            (library.rados_read_op_getxattrs)(operation, &mut target.attributes, &mut target.attributes_code);
            if target.wants_entries {
                (library.rados_read_op_omap_get_vals2)(
                    operation,
                    after.as_ptr(),
                    CString::default().as_ptr(),
                    max as u64,
                    &mut target.entries,
                    &mut target.has_more,
                    &mut target.entries_code,
                );
            }
            (library.rados_aio_read_op_operate)(operation, raw, completion, object.as_ptr(), 0)
        }
    });
    // SAFETY: its content has gone over to what was submitted.
    unsafe { (library.rados_release_read_op)(operation) };
    looked
}

fn finish_look(library: &'static Library, target: Looking, code: c_int) -> Outcome<Look> {
    let failed = [code, target.attributes_code, target.entries_code].into_iter().find(|code| *code < 0);
    // SAFETY: the iterators were made by the library for this operation, are used no more after this, and have something to
    // walk through where all of it has succeeded.
    unsafe {
        let looked = match failed {
            None => Ok(walk(library, &target)),
            Some(code) => Err(code),
        };
        if !target.attributes.is_null() {
            (library.rados_getxattrs_end)(target.attributes);
        }
        if !target.entries.is_null() {
            (library.rados_omap_get_end)(target.entries);
        }
        looked
    }
}

/// Copies what iterators point to.
///
/// # Safety
/// The look has succeeded: the library begins its iterators when an answer has come. One of entries that was not begun, as of
/// an operation that had no answer in time, is at no address.
unsafe fn walk(library: &'static Library, target: &Looking) -> Look {
    let mut look = Look { has_more: target.has_more != 0, ..Look::default() };
    // SAFETY: as the caller says.
    unsafe {
        while !target.attributes.is_null() {
            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
            let next = (library.rados_getxattrs_next)(target.attributes, &mut name, &mut value, &mut len);
            if next < 0 || name.is_null() {
                break;
            }
            let name = std::ffi::CStr::from_ptr(name).to_string_lossy().into_owned();
            look.attributes.push((name, copied(value, len)));
        }
        while !target.entries.is_null() {
            let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
            let (mut key_len, mut len) = (0, 0);
            let next = (library.rados_omap_get_next2)(target.entries, &mut key, &mut value, &mut key_len, &mut len);
            if next < 0 || key.is_null() {
                break;
            }
            let key = String::from_utf8_lossy(&copied(key, key_len)).into_owned();
            look.entries.push((key, copied(value, len)));
        }
    }
    look
}

/// # Safety
/// `len` bytes can be read at `start`, if there are any.
unsafe fn copied(start: *const c_char, len: usize) -> Vec<u8> {
    match start.is_null() || len == 0 {
        true => Vec::new(),
        // SAFETY: as the caller says.
        false => unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use base::{Bytes, Gathered};
    use runtime::Handle;

    use super::super::{Place, text};
    use super::*;

    /// OSDs that answer nothing until this is dropped; then they answer whatever they were asked.
    struct Pause(Vec<String>);

    impl Pause {
        /// Of those that `tests/cluster/engines` has started in this directory.
        async fn begin(handle: &Handle, engines: &Path) -> Pause {
            let files = std::fs::read_dir(engines.join("run")).unwrap().map(|entry| entry.unwrap().path());
            let of_osds = files.filter(|file| {
                let name = file.file_name().unwrap().to_str().unwrap();
                name.starts_with("osd.") && name.ends_with(".pid")
            });
            let pids = of_osds.map(|file| std::fs::read_to_string(file).unwrap().trim().to_owned());
            let pause = Pause(pids.collect());
            pause.signal("STOP");
            // A thread that runs, or answers what has just come, stops a little later than the signal was sent.
            for _ in 0..1000 {
                if pause.0.iter().all(|pid| is_stopped(pid)) {
                    return pause;
                }
                handle.sleep(Duration::from_millis(10)).await;
            }
            panic!("OSDs do not stop");
        }

        fn signal(&self, name: &str) {
            assert!(Command::new("kill").args(["-s", name]).args(&self.0).status().unwrap().success());
        }
    }

    impl Drop for Pause {
        fn drop(&mut self) {
            self.signal("CONT");
        }
    }

    /// Whether each thread of a process stands still.
    fn is_stopped(pid: &str) -> bool {
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.all(|thread| {
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
            // The state is after the name, which may have spaces and brackets in it. Whoever just ended is looked for once more.
            stat.is_ok_and(|stat| stat.rsplit_once(") ").unwrap().1.starts_with('T'))
        })
    }

    /// Each kind of operation, of a real cluster, where one is.
    #[test]
    fn an_operation_without_an_answer_in_time_fails() {
        let Ok(named) = std::env::var("LEVEE_TEST_POOL") else {
            eprintln!("skipped: LEVEE_TEST_POOL names no pool (make test-cluster starts a cluster that has one)");
            return;
        };
        let place = Place::parse(&named).unwrap();
        let conf = place.conf.unwrap();
        let mut cluster = Library::get().unwrap().cluster(&text(&place.user).unwrap()).unwrap();
        cluster.read_conf(Some(&text(conf.to_str().unwrap()).unwrap())).unwrap();
        cluster.set(&text("rados_osd_op_timeout").unwrap(), &text("1").unwrap()).unwrap();
        cluster.connect().unwrap();
        let namespace = format!("patience-{}", std::process::id());
        let context = cluster.context(&text(&place.pool).unwrap(), &text(&namespace).unwrap()).unwrap();
        let data = Gathered::from(Bytes::from(vec![7; 4096]));
        let made = Change::default()
            .and(Effect::Write { offset: 0, data })
            .and(Effect::SetAttribute("name", b"value".to_vec()))
            .and(Effect::SetEntry("key".into(), b"entry".to_vec()));
        let run = runtime::uring::run(runtime::uring::Options::default(), move |handle| async move {
            let each = async || {
                let looked = look(&context, "object", "", 10);
                let (read, read_any) = (read(&context, "object", 0, 4096), read_any(&context, "object", 0, 4096));
                let changed = change(&context, "object", &made);
                let of_read = |read: Outcome<AlignedBuf>| read.map(|read| read.len());
                [looked.await.map(|look| look.entries.len()), of_read(read.await), of_read(read_any.await)]
                    .into_iter()
                    .chain([changed.await.map(|()| 0)])
                    .collect::<Vec<_>>()
            };
            change(&context, "object", &made).await.unwrap();
            assert_eq!(each().await, [Ok(1), Ok(4096), Ok(4096), Ok(0)]);
            let pause = Pause::begin(&handle, conf.parent().unwrap()).await;
            assert_eq!(each().await, [Err(-libc::ETIMEDOUT); 4]);
            drop(pause);
            assert_eq!(each().await, [Ok(1), Ok(4096), Ok(4096), Ok(0)]);
        });
        run.unwrap();
    }
}
