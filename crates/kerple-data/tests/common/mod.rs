//! What several test programs share.
#![allow(dead_code, reason = "each test program takes what it needs")]

use kerple_data::{CorpusSummary, PrepareOptions, Sources, prepare};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tempfile::TempDir;

/// The system's allocator, and how much it has given out.
pub struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn taken(bytes: usize) {
    MOST.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call is passed on to the system's allocator; the counters do not touch what it gives.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(size);
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(old, layout) }
    }
}

/// What `work` gives, and the most bytes it held at once beyond those held before.
pub fn most<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let result = work();
    (result, MOST.load(Relaxed) - before)
}

/// A folder with these files.
pub fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

/// Texts as JSON lines.
pub fn lines(texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    texts.into_iter().map(|text| serde_json::json!({ "text": text.as_ref() }).to_string() + "\n").collect()
}

/// Prepares one input with a tokenizer.
pub fn prepared(input: &Path, tokenizer: &str, out: &Path) -> kerple_data::Result<CorpusSummary> {
    let plain = PrepareOptions::new(Sources::paths(&[input]), out);
    let options = PrepareOptions { tokenizer: tokenizer.to_owned(), allow_loss: true, replace: true, ..plain };
    prepare(&options, &mut |_| {})
}
