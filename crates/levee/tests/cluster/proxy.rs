//! A way between two processes that can be cut, in one direction or in both, without either of them being told.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// See the module. What was said while it was cut arrives when it is mended, as TCP would have it.
pub struct Proxy {
    there: Arc<AtomicBool>,
    back: Arc<AtomicBool>,
}

impl Proxy {
    /// Takes connections at `at`, and makes each one anew to `to`.
    pub fn start(at: &Path, to: PathBuf) -> Proxy {
        let listener = UnixListener::bind(at).unwrap();
        let (there, back) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let cuts = (there.clone(), back.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                let Ok(far) = UnixStream::connect(&to) else { continue };
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (there, back) = (cuts.0.clone(), cuts.1.clone());
                std::thread::spawn(move || carry(near, far, &there));
                std::thread::spawn(move || carry(far_too, near_too, &back));
            }
        });
        Proxy { there, back }
    }

    /// Whether what the near side says is held up, and what the far side answers.
    pub fn cut(&self, there: bool, back: bool) {
        self.there.store(there, Ordering::Relaxed);
        self.back.store(back, Ordering::Relaxed);
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, is_cut: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len) = from.read(&mut bytes) {
        while is_cut.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if len == 0 || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
