//! Turns panics of other libraries on damaged input into messages.
//!
//! Parquet and tokenizer files come from anywhere, and the libraries that read them panic on some
//! damaged ones. Only calls into those libraries are contained. Panics of kerple's own code are
//! bugs and stay visible.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// The result of `work`, or what it panicked with. Whatever `work` was changing must not be used after a panic.
pub(crate) fn contain<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    quiet();
    let before = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(before);
    result.map_err(|payload| format!("the library that reads it failed: {}", words(&*payload)))
}

/// Contained panics are not printed; the hook that was there before prints all others.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !CONTAINED.get() {
                before(panic);
            }
        }));
    });
}

fn words(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_messages() {
        let index = [1, 2].len();
        assert_eq!(contain(|| 3), Ok(3));
        assert!(contain(|| [1, 2][index]).unwrap_err().contains("out of bounds"));
        assert_eq!(contain(|| panic!("at {index}")), Err::<(), _>("the library that reads it failed: at 2".to_owned()));
        assert!(!CONTAINED.get());
    }
}
