//! The allocator: mimalloc, which keeps freed memory for the next step, and a count of what is in use.

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocates and counts.
pub struct CountingAllocator;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grew(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to mimalloc; counting touches no memory it hands out.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: the caller's promise about `layout` is mimalloc's.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from mimalloc with this `layout`.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grew(size);
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }
}

/// `mi_option_purge_delay` of mimalloc.h, in milliseconds; -1 never returns memory.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Tells mimalloc to keep freed memory instead of returning it to the system after 10 ms: buffers of many megabytes come and
/// go with every training step, and faulting them in again costs a sixth of it.
pub fn keep_freed() {
    // SAFETY: sets a number in mimalloc's own table of options.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) }
}

/// Returns what is free, and from now on what is freed, at once: for few and large buffers of many sizes, of which each would
/// be kept in a place that does not fit the others.
pub fn return_freed() {
    // SAFETY: sets a number in mimalloc's own table of options, and collects what nobody uses.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, 0);
        libmimalloc_sys::mi_collect(true);
    }
}

/// Runs `work` and returns by how much memory in use exceeded, at its peak, what was in use before, in MiB.
pub fn extra_mib(work: impl FnOnce()) -> f64 {
    let before = IN_USE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    (PEAK.load(Ordering::Relaxed) - before) as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    #[global_allocator]
    static ALLOCATOR: super::CountingAllocator = super::CountingAllocator;

    #[test]
    fn a_buffer_counts_while_it_lives() {
        let extra = super::extra_mib(|| drop(std::hint::black_box(vec![1u8; 64 << 20])));
        // other tests of this process allocate a little at the same time
        assert!((64.0..80.0).contains(&extra), "{extra}");
    }
}
