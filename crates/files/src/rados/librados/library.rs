//! The few functions of librados that are used, loaded from the library when they are needed, and its objects as types.
//!
//! The signatures are those of `rados/librados.h` of Ceph 16; the functions whose names end in 2 came with Ceph 14, below
//! which the library is refused.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::ptr;
use std::sync::OnceLock;

use base::{Error, Result};

/// What the library calls its things: pointers of which nobody knows more.
pub(super) type Raw = *mut c_void;
/// What is called when an operation is done.
pub(super) type Callback = unsafe extern "C" fn(completion: Raw, argument: *mut c_void);

/// The file that is loaded.
const NAME: &str = "librados.so.2";

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library, in this process for good.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Library, String> {
                // SAFETY: the library is Ceph's own; what it does when it is loaded is to prepare itself.
                let library = unsafe { libloading::Library::new(NAME) }.map_err(|error| {
                    format!("{NAME} cannot be loaded ({error}): install it (Debian and Ubuntu: apt-get install librados2)")
                })?;
                // It stays: threads of it may run until the process ends.
                let library: &'static libloading::Library = Box::leak(Box::new(library));
                Ok(Library {
                    $($name: {
                        // SAFETY: the type is that of the function of this name in librados.h.
                        let found = unsafe { library.get(stringify!($name).as_bytes()) };
                        *found.map_err(|_| {
                            format!("{NAME} has no {}: it is too old, install that of Ceph 14 or newer", stringify!($name))
                        })?
                    },)*
                })
            }
        }
    };
}

functions! {
    rados_create: fn(*mut Raw, *const c_char) -> c_int;
    rados_conf_read_file: fn(Raw, *const c_char) -> c_int;
    rados_conf_set: fn(Raw, *const c_char, *const c_char) -> c_int;
    rados_connect: fn(Raw) -> c_int;
    rados_shutdown: fn(Raw);
    rados_mon_command: fn(Raw, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize,
        *mut *mut c_char, *mut usize) -> c_int;
    rados_buffer_free: fn(*mut c_char);
    rados_ioctx_create: fn(Raw, *const c_char, *mut Raw) -> c_int;
    rados_ioctx_set_namespace: fn(Raw, *const c_char);
    rados_aio_create_completion2: fn(*mut c_void, Callback, *mut Raw) -> c_int;
    rados_aio_get_return_value: fn(Raw) -> c_int;
    rados_aio_release: fn(Raw);
    rados_aio_read: fn(Raw, *const c_char, Raw, *mut c_char, usize, u64) -> c_int;
    rados_read_op_read: fn(Raw, u64, usize, *mut c_char, *mut usize, *mut c_int);
    rados_create_write_op: fn() -> Raw;
    rados_release_write_op: fn(Raw);
    rados_write_op_assert_exists: fn(Raw);
    rados_write_op_create: fn(Raw, c_int, *const c_char);
    rados_write_op_cmpxattr: fn(Raw, *const c_char, u8, *const c_char, usize);
    rados_write_op_omap_cmp2: fn(Raw, *const c_char, u8, *const c_char, usize, usize, *mut c_int);
    rados_write_op_setxattr: fn(Raw, *const c_char, *const c_char, usize);
    rados_write_op_write: fn(Raw, *const c_char, usize, u64);
    rados_write_op_remove: fn(Raw);
    rados_write_op_omap_set2: fn(Raw, *const *const c_char, *const *const c_char, *const usize, *const usize, usize);
    rados_write_op_omap_rm_keys2: fn(Raw, *const *const c_char, *const usize, usize);
    rados_aio_write_op_operate: fn(Raw, Raw, Raw, *const c_char, *mut c_void, c_int) -> c_int;
    rados_create_read_op: fn() -> Raw;
    rados_release_read_op: fn(Raw);
    rados_read_op_getxattrs: fn(Raw, *mut Raw, *mut c_int);
    rados_read_op_omap_get_vals2: fn(Raw, *const c_char, *const c_char, u64, *mut Raw, *mut c_uchar, *mut c_int);
    rados_aio_read_op_operate: fn(Raw, Raw, Raw, *const c_char, c_int) -> c_int;
    rados_getxattrs_next: fn(Raw, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
    rados_getxattrs_end: fn(Raw);
    rados_omap_get_next2: fn(Raw, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize) -> c_int;
    rados_omap_get_end: fn(Raw);
}

impl Library {
    /// The library, loaded by whoever asks first.
    ///
    /// # Errors
    /// `Invalid`: it is not there, or too old; what to do.
    pub(super) fn get() -> Result<&'static Library> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(|wrong| Error::invalid(wrong.clone()))
    }

    /// A connection that is to be made.
    ///
    /// # Errors
    /// The library's code, below zero; so for all calls below.
    pub(super) fn cluster(&'static self, user: &CStr) -> Result<Cluster, c_int> {
        let mut raw = ptr::null_mut();
        // SAFETY: both live for the call.
        checked(unsafe { (self.rados_create)(&mut raw, user.as_ptr()) })?;
        Ok(Cluster { functions: self, raw, is_connected: false })
    }
}

fn checked(code: c_int) -> Result<(), c_int> {
    if code < 0 { Err(code) } else { Ok(()) }
}

/// A connection.
pub(super) struct Cluster {
    functions: &'static Library,
    raw: Raw,
    is_connected: bool,
}

// SAFETY: librados.h: functions may be called from any thread, several at a time.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    pub(super) fn read_conf(&self, file: Option<&CStr>) -> Result<(), c_int> {
        let file = file.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the name lives for the call; without one the library looks in its own places.
        checked(unsafe { (self.functions.rados_conf_read_file)(self.raw, file) })
    }

    pub(super) fn set(&self, name: &CStr, value: &CStr) -> Result<(), c_int> {
        // SAFETY: both live for the call.
        checked(unsafe { (self.functions.rados_conf_set)(self.raw, name.as_ptr(), value.as_ptr()) })
    }

    pub(super) fn connect(&mut self) -> Result<(), c_int> {
        // SAFETY: the handle is that of rados_create.
        checked(unsafe { (self.functions.rados_connect)(self.raw) })?;
        self.is_connected = true;
        Ok(())
    }

    /// A namespace of a pool.
    pub(super) fn context(&self, pool: &CStr, namespace: &CStr) -> Result<Context, c_int> {
        let mut raw = ptr::null_mut();
        // SAFETY: the names live for the calls, and the context is set up before anybody else has it.
        unsafe {
            checked((self.functions.rados_ioctx_create)(self.raw, pool.as_ptr(), &mut raw))?;
            (self.functions.rados_ioctx_set_namespace)(raw, namespace.as_ptr());
        }
        Ok(Context { functions: self.functions, raw })
    }

    /// Asks a monitor; waits for the answer.
    pub(super) fn ask(&self, command: &CStr) -> Result<Vec<u8>, c_int> {
        let commands = [command.as_ptr()];
        let (mut answer, mut len) = (ptr::null_mut(), 0);
        let (mut said, mut said_len) = (ptr::null_mut(), 0);
        // SAFETY: all of it lives for the call; what the library allocates is copied and freed.
        unsafe {
            let code = (self.functions.rados_mon_command)(
                self.raw,
                commands.as_ptr(),
                1,
                ptr::null(),
                0,
                &mut answer,
                &mut len,
                &mut said,
                &mut said_len,
            );
            let mut copy = Vec::new();
            if !answer.is_null() {
                copy.extend_from_slice(std::slice::from_raw_parts(answer.cast::<u8>(), len));
                (self.functions.rados_buffer_free)(answer);
            }
            if !said.is_null() {
                (self.functions.rados_buffer_free)(said);
            }
            checked(code).map(|()| copy)
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // One that is connected is kept for as long as the process lives.
        if !self.is_connected {
            // SAFETY: nobody else has the handle.
            unsafe { (self.functions.rados_shutdown)(self.raw) }
        }
    }
}

/// A namespace of a pool. Kept for as long as the process lives: operations may be under way.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub(super) functions: &'static Library,
    pub(super) raw: Raw,
}

// SAFETY: as for a cluster; nothing of it is changed after it was set up.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A text without zero bytes, as the library wants it. What a program of ours names has none.
pub(super) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}
