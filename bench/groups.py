"""Which group of functions a sample belongs to: by the first frame, from the inside out, that says so.

What many use (a spin lock, a slab) says nothing, so that its caller decides. In user space only the innermost function
counts: release builds have no frame pointers, and what stands above it in a call chain would be made up.
"""

import re

KERNEL = [
    ("idle", r"default_idle|pv_native_safe_halt|cpuidle_enter|mwait_idle|intel_idle|acpi_idle|do_idle"),
    ("copy, kernel", r"_copy_(from|to)_iter|copy_user|rep_movs|copy_page|copyout|copyin|memcpy(?!_)|__copy_skb|simple_copy"),
    ("scheduler", r"^(__)?schedule|finish_task_switch|try_to_wake_up|ttwu_|pick_next_|select_task_rq|(de|en)queue_task"
                  r"|__switch_to|update_curr|wake_up_|__wake_up|prepare_to_wait|autoremove_wake|futex|resched|sched_"
                  r"|do_nanosleep|update_load_avg|set_next_entity|ret_from_fork_idle"),
    ("socket", r"unix_|^tcp_|^__tcp|sock_|^skb_|_skb|^sk_|^ip_|^__ip|inet_|net_rx|__dev_queue|loopback|dev_hard|sendmsg"
               r"|recvmsg|__sys_send|__sys_recv|^io_(send|recv)|do_iter_readv|^nf_|scm_"),
    ("disk", r"^blk_|^__blk|submit_bio|virtblk|virtio|virtqueue|vring|iowrite|^bio_|^__bio|^dd_|^mq_|^elv_|^bfq|^nvme"
             r"|scsi_|flush_end_io|wbt_|rq_qos|block_|iov_iter_extract|gup_fast|pin_user_pages|unpin_user"),
    ("file system", r"^ext4|^jbd2|^xfs|^btrfs|iomap|^vfs_|^file_|^generic_|filemap|folio|dio_|inode|fsync|truncate|fallocate"
                    r"|read_pages|readahead|kiocb|shmem|crc32c|es_lookup|jbd"),
    ("memory", r"clear_page|handle_mm_fault|page_fault|madvise|munmap|unmap_|zap_|mmap|tlb|get_page_from_freelist|alloc_pages"
               r"|free_pages|mprotect|exit_mm|brk"),
    ("io_uring", r"^io_|^__io_|io_wq|io_worker|sys_io_uring"),
    ("process start", r"execve|exit_group|do_exit|clone|load_elf|wait4"),
    ("interrupts and timers", r"irq|timer|tick_|apic|softirq|perf_|smp_call|rcu_"),
    ("other system calls", r"^__x64_sys|^ksys_|^do_sys"),
    ("system call entry", r"entry_SYSCALL|do_syscall|syscall|^entry_"),
    ("kernel worker", r"worker_thread|process_one_work|kthread"),
]

USER = [
    ("checksum", r"crc|checksum"),
    ("memcpy", r"memcpy|memmove|memset|memcmp|mempcpy"),
    ("allocator", r"\bmi_|_mi_|\bmalloc|\bfree$|cfree|calloc|realloc|_int_|aligned_alloc|posix_memalign|je_|__rust_alloc"
                  r"|mimalloc|sysmalloc|alloc_zero|theap"),
    ("system call stub", r"^syscall$|^_*GI___|^__(send|recv|read|write|poll|ppoll|epoll|libc_)|__vdso_getcpu|^(send|recv|poll)"),
    ("clock", r"clock_gettime|gettimeofday|\[vdso\]"),
    ("engine", r"\bengine::"),
    ("files", r"\bfiles::"),
    ("agent", r"\bagent::"),
    ("block server", r"\b(server|link|wire)::"),
    ("policies", r"\bpolicies::"),
    ("runtime", r"\bruntime::|async_task|io_uring::|futures|core::future|core::task|\bcrossbeam|slab::"),
    ("other crates", r"\b(base|control|node|levee)::"),
    ("collections", r"alloc::|hashbrown|core::|std::|indexmap|smallvec|btree|Vec<"),
]

# Interrupts that were held back arrive where a lock is given back, and so do the clock's: neither says whose time it is.
SAYS_NOTHING = re.compile(r"^_raw_|^native_|^__x64_sys_(?!io_uring)|^asm_sysvec|^sysvec|^__sysvec")

KERNEL = [(name, re.compile(pattern)) for name, pattern in KERNEL]
USER = [(name, re.compile(pattern)) for name, pattern in USER]


def group_of(frames):
    """Group of a sample; `frames` are (symbol, object) from the inside out."""
    symbol, module = frames[0]
    if not is_kernel(module):
        for name, pattern in USER:
            if pattern.search(symbol) or name == "clock" and "vdso" in module:
                return name
        program = module.rsplit("/", 1)[-1]
        return f"{program}, other" if program else "other"
    for symbol, module in frames:
        if not is_kernel(module):
            break
        if SAYS_NOTHING.search(symbol):
            continue
        for name, pattern in KERNEL:
            if pattern.search(symbol):
                return name
    return "kernel, other"


def is_kernel(module):
    return module.startswith("[kernel") or module.startswith("[guest.kernel") or module.endswith(".ko")
