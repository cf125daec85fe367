//! Free memory, so that work that needs more is refused before it starts.

use crate::error::{Error, Result};
use std::path::Path;

/// The most memory this process can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// What sets it.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
}

impl MemoryLimit {
    /// The smallest limit that the system reports: the machine's memory, those of this process's
    /// control groups, and its address space. `None` where none can be read.
    pub fn here() -> Option<MemoryLimit> {
        bounds(&read).into_iter().map(|(limit, _)| limit).min_by_key(|limit| limit.bytes)
    }
}

type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Every limit, and how many bytes of it are free.
fn bounds(read: ReadFile) -> Vec<(MemoryLimit, u64)> {
    let text = |path: &str| read(Path::new(path)).unwrap_or_default();
    let meminfo = text("/proc/meminfo");
    let machine =
        kilobytes(&meminfo, "MemTotal:").map(|all| (all, kilobytes(&meminfo, "MemAvailable:").unwrap_or(all)));
    let taken = kilobytes(&text("/proc/self/status"), "VmSize:").unwrap_or(0);
    let space = address_space(&text("/proc/self/limits")).map(|all| (all, all.saturating_sub(taken)));
    let named = |name: &'static str| move |(bytes, free): (u64, u64)| (MemoryLimit { name, bytes }, free);
    let groups = control_groups(&text("/proc/self/cgroup"), read).into_iter();
    let machine = machine.into_iter().map(named("the machine's memory"));
    let space = space.into_iter().map(named("the limit of this process (ulimit -v)"));
    machine.chain(space).chain(groups.map(named("the limit of this control group"))).collect()
}

/// `MemTotal:  32786 kB`
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `Max address space   8192000000   unlimited   bytes`
fn address_space(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The limits on the way from this process's group up to the root, and what is free of each, of version 2 (`0::/path`,
/// `memory.max`) and version 1 (`5:memory:/path`, `memory.limit_in_bytes`).
fn control_groups(text: &str, read: ReadFile) -> Vec<(u64, u64)> {
    let limits = text.lines().flat_map(|line| -> Vec<(u64, u64)> {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
        let (root, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => return Vec::new(),
        };
        let free = |group: &Path| {
            let text = |file: &str| read(&Path::new(root).join(group).join(file));
            let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
            let (bytes, used) = (number(limit)?, number(usage).unwrap_or(0));
            // what was read of files and is not in use makes way
            let page = |line: &str| line.strip_prefix("inactive_file ")?.parse::<u64>().ok();
            let pages = text("memory.stat").and_then(|stat| stat.lines().find_map(page)).unwrap_or(0);
            Some((bytes, bytes.saturating_sub(used.saturating_sub(pages))))
        };
        Path::new(path.trim_start_matches('/')).ancestors().filter_map(free).collect()
    });
    limits.collect()
}

/// Refuses what needs more than is free.
///
/// # Errors
/// Names `what`, the need and what is free.
pub(crate) fn require(what: &str, bytes: u128, hint: &str) -> Result<()> {
    let free = bounds(&read).into_iter().map(|(_, free)| free).min().unwrap_or(u64::MAX);
    if bytes <= u128::from(free) {
        Ok(())
    } else {
        Err(Error::refused(
            format!("{what} needs about {:.1} GB of memory; {:.1} GB are free", bytes as f64 / 1e9, free as f64 / 1e9),
            hint,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused() {
        require("a little", 1, "").unwrap();
        let error = require("everything", u128::from(u64::MAX) + 1, "take less").unwrap_err().to_string();
        assert!(error.starts_with("everything needs about 18446744073.7 GB of memory; "), "{error}");
    }

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        assert_eq!(kilobytes("MemFree: 1 kB\nMemTotal:       32786 kB\n", "MemTotal:"), Some(32786 * 1024));
        assert_eq!(kilobytes("MemTotal: many", "MemTotal:"), None);
        let limits = "Limit   Soft Limit   Hard Limit   Units\nMax address space         8192   unlimited   bytes\n";
        assert_eq!(address_space(limits), Some(8192));
        assert_eq!(address_space("Max address space   unlimited   unlimited   bytes"), None);
        let files = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/a/b/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/a/memory.max" => Some("5000\n".to_owned()),
            "/sys/fs/cgroup/a/memory.current" => Some("1000\n".to_owned()),
            "/sys/fs/cgroup/a/memory.stat" => Some("anon 300\ninactive_file 600\n".to_owned()),
            "/sys/fs/cgroup/memory/x/memory.limit_in_bytes" => Some("4000\n".to_owned()),
            "/sys/fs/cgroup/memory/x/memory.usage_in_bytes" => Some("4096\n".to_owned()),
            "/sys/fs/cgroup/memory/memory.limit_in_bytes" => Some("9223372036854771712\n".to_owned()),
            _ => None,
        };
        assert_eq!(control_groups("0::/a/b\n", &files), [(5000, 4600)]);
        let all = 9_223_372_036_854_771_712;
        assert_eq!(control_groups("3:cpu:/a\n5:cpu,memory:/x\n", &files), [(4000, 0), (all, all)]);
        assert!(control_groups("0::/other", &files).is_empty(), "what cannot be read refuses nothing");
        assert!(control_groups("nonsense", &files).is_empty());
    }

    #[test]
    fn the_smallest_limit_and_the_least_that_is_free_may_differ() {
        let files = |path: &Path| match path.to_str()? {
            "/proc/meminfo" => Some("MemTotal: 9 kB\nMemAvailable:     1 kB\n".to_owned()),
            "/proc/self/limits" => Some("Max address space   8192   8192   bytes\n".to_owned()),
            "/proc/self/status" => Some("VmPeak:\t 7 kB\nVmSize:\t 5 kB\n".to_owned()),
            _ => None,
        };
        let found: Vec<(u64, u64)> = bounds(&files).into_iter().map(|(limit, free)| (limit.bytes, free)).collect();
        assert_eq!(found, [(9 << 10, 1 << 10), (8 << 10, 3 << 10)]);
        assert!(bounds(&|_| None).is_empty());
    }
}
