//! Out-of-memory errors of a GPU. Work on a GPU is queued, so the error arrives later, as a panic
//! on the thread that waits for a result or queues more work.

use crate::command_error::CommandError;
use crate::output;
use kerple_burn::device::DeviceName;
use std::panic;

/// What can be asked for less of, by the commands that take it.
const HINT: &str = "lower train.micro_batch_size (results change by rounding only) or train.train_len; \
    for eval lower --lengths; for bench lower --batch or --lengths. See docs/gpu.md for memory use";

/// Ends the process with an error in place of a panic when this device has no memory left.
pub fn tell_of(name: DeviceName) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |news| match news.payload_as_str().and_then(shortage) {
        Some(what) => {
            output::complain(&CommandError::failed(format!("--device {name}: {what}"), HINT), None);
            std::process::exit(1);
        }
        None => usual(news),
    }));
}

/// The line of a panic's message that says that memory is short, in the words of CubeCL or of a driver.
fn shortage(message: &str) -> Option<&str> {
    const WORDS: [&str; 4] =
        ["out of device memory", "out of memory", "out-of-memory", "can't allocate buffer of size"];
    let says = |line: &&str| WORDS.iter().any(|words| line.to_lowercase().contains(words));
    message.lines().map(str::trim).find(says)
}

#[cfg(test)]
mod tests {
    use super::shortage;

    #[test]
    fn a_shortage_is_known_by_its_words() {
        let message = "reading failed\nCaused by:\n  out of device memory allocating 4096 bytes\nBacktrace\n";
        assert_eq!(shortage(message), Some("out of device memory allocating 4096 bytes"));
        assert_eq!(shortage("wgpu error: Out of Memory"), Some("wgpu error: Out of Memory"));
        assert_eq!(shortage("index out of bounds: the len is 3"), None);
    }
}
