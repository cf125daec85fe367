//! How much memory there is, so that work that needs more is refused before it begins.

use crate::error::{Error, Result};

/// Bytes that this process can still take, where the system says: the least of the machine's available memory and what
/// the limits of its control group leave.
pub(crate) fn available_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| available(&text));
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    let left = |limit: &str, used: &str| Some(number(limit)?.saturating_sub(number(used)?));
    let group = left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    machine.into_iter().chain(group).min()
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Refuses what needs more than there is.
///
/// # Errors
/// Names `what`, the need and what is available.
pub(crate) fn require(what: &str, bytes: u128, hint: &str) -> Result<()> {
    let available = available_memory().unwrap_or(u64::MAX);
    match bytes <= u128::from(available) {
        true => Ok(()),
        false => Err(Error::refused(
            format!(
                "{what} needs about {:.1} GB of memory, {:.1} GB are free",
                bytes as f64 / 1e9,
                available as f64 / 1e9
            ),
            hint,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:     1234 kB\n"), Some(1234 << 10));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        require("a little", 1, "").unwrap();
        let error = require("everything", u128::from(u64::MAX) + 1, "take less").unwrap_err().to_string();
        assert!(error.starts_with("everything needs about 18446744073.7 GB of memory, "), "{error}");
    }
}
