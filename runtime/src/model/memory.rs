//! How much memory this process may use.

use std::path::Path;

/// Bytes of memory that may be used: the machine's, or its control group's limit where that is lower. `None` where the
/// system does not say.
pub(super) fn limit() -> Option<u64> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| total_of(&text));
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .into_iter()
        .filter_map(|path| read(Path::new(path))?.trim().parse().ok())
        .min();
    [machine, group].into_iter().flatten().min()
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// `MemTotal` of a meminfo text, bytes.
fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        assert_eq!(total_of("MemTotal:       24566428 kB\nMemFree: 1 kB\n"), Some(24_566_428 * 1024));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert_eq!(total_of("MemTotal: many kB\n"), None);
    }
}
