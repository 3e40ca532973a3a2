//! What a virtual machine starts from: an archive in memory with busybox, modules of its kernel, and a script.

use std::path::{Path, PathBuf};

/// Modules that a virtio disk needs, in the order of their needs.
const MODULES: [&str; 6] =
    ["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk"];

/// A kernel and its modules, and a busybox that needs no library.
pub struct Parts {
    pub kernel: PathBuf,
    modules: Vec<PathBuf>,
    busybox: PathBuf,
}

impl Parts {
    /// What `scripts/setup test` has left there; nothing, with a line that says so, where it could not.
    pub fn find() -> Option<Parts> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/guest");
        let missing = |what: &str| {
            eprintln!("skipped: {what} is missing (scripts/setup test installs it)");
            None
        };
        if std::process::Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
            return missing("qemu-system-x86_64");
        }
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().map(PathBuf::from).find(|path| is_static(path));
        let Some(busybox) = busybox else { return missing("a static busybox") };
        let kernel = root.join("vmlinuz");
        let modules: Vec<PathBuf> = MODULES.iter().map(|name| root.join(format!("{name}.ko"))).collect();
        match kernel.exists() && modules.iter().all(|module| module.exists()) {
            true => Some(Parts { kernel, modules, busybox }),
            false => missing("a kernel for virtual machines"),
        }
    }

    /// The archive, with `script` as what runs first.
    pub fn archive(&self, script: &str) -> Vec<u8> {
        let mut archive = Archive::default();
        for directory in ["bin", "dev", "proc", "sys", "tmp", "mnt", "modules"] {
            archive.add(directory, 0o040_755, &[]);
        }
        archive.add("bin/busybox", 0o100_755, &std::fs::read(&self.busybox).unwrap());
        for (name, path) in MODULES.iter().zip(&self.modules) {
            archive.add(&format!("modules/{name}.ko"), 0o100_644, &std::fs::read(path).unwrap());
        }
        let load: String = MODULES.iter().map(|name| format!("insmod /modules/{name}.ko\n")).collect();
        archive.add("init", 0o100_755, script.replace("LOAD_MODULES\n", &load).as_bytes());
        archive.end()
    }
}

/// Whether a program runs without a loader of libraries: an ELF file without such a segment.
fn is_static(path: &Path) -> bool {
    const INTERPRETER: u32 = 3;
    let Ok(program) = std::fs::read(path) else { return false };
    let number = |at: usize, len: usize| {
        program[at..at + len].iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let (start, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    program.starts_with(b"\x7fELF") && (0..count).all(|n| number(start + n * size, 4) as u32 != INTERPRETER)
}

/// A cpio archive of the kind that the kernel unpacks.
#[derive(Default)]
struct Archive(Vec<u8>, u32);

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.1 += 1;
        let fields = [self.1, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.0.extend(b"070701");
        fields.iter().for_each(|field| self.0.extend(format!("{field:08X}").as_bytes()));
        self.0.extend(name.as_bytes());
        self.0.push(0);
        self.pad();
        self.0.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.0
    }
}
