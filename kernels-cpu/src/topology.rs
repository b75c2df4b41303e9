//! How many threads to run, and where: physical cores inside the affinity mask and the cgroup's quota.

use std::collections::BTreeMap;
use std::path::Path;

/// Logical CPUs to run on, one for each physical core, fewest first number first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// One logical CPU for each physical core that this process may use.
    pub cores: Vec<usize>,
    /// Whole CPUs of time that the cgroup grants, at least 1; `None` without a limit.
    pub quota: Option<usize>,
}

impl Topology {
    /// Looks at this process and machine. Falls back to what the standard library knows.
    pub fn detect() -> Topology {
        let allowed = allowed_cpus();
        let cores = physical(&allowed, |cpu| {
            let read = |file: &str| {
                let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}");
                std::fs::read_to_string(path).ok()?.trim().parse::<i64>().ok()
            };
            Some((read("physical_package_id")?, read("core_id")?))
        });
        Topology { cores, quota: cgroup_quota(Path::new("/sys/fs/cgroup"), Path::new("/proc/self/cgroup")) }
    }

    /// Threads to run without a wish of the user.
    pub fn threads(&self) -> usize {
        self.quota.map_or(self.cores.len(), |q| q.min(self.cores.len())).max(1)
    }
}

/// The first logical CPU of each core; a CPU whose core is unknown counts as a core.
fn physical(allowed: &[usize], core_of: impl Fn(usize) -> Option<(i64, i64)>) -> Vec<usize> {
    let mut first: BTreeMap<(i64, i64), usize> = BTreeMap::new();
    for &cpu in allowed {
        let key = core_of(cpu).unwrap_or((-1, cpu as i64));
        first.entry(key).or_insert(cpu);
    }
    let mut cores: Vec<usize> = first.into_values().collect();
    cores.sort_unstable();
    cores
}

#[cfg(target_os = "linux")]
fn allowed_cpus() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live cpu_set_t of the size that is passed; pid 0 is this thread.
    let rc = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if rc != 0 {
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    }
    // SAFETY: CPU_ISSET reads inside the set for indices below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

#[cfg(not(target_os = "linux"))]
fn allowed_cpus() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Lets the calling thread run on these CPUs only. Does nothing where the system refuses.
#[cfg(target_os = "linux")]
pub(crate) fn stay_on(cpus: &[usize]) {
    // SAFETY: an all-zero cpu_set_t is a valid empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index lies below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is a live cpu_set_t of the size that is passed; pid 0 is this thread. A refusal changes nothing.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn stay_on(_cpus: &[usize]) {}

/// The smallest `cpu.max` (version 2) or CFS quota (version 1) from this process's group up to the root, rounded up.
fn cgroup_quota(root: &Path, membership: &Path) -> Option<usize> {
    let groups = std::fs::read_to_string(membership).ok()?;
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let base = match controllers {
            "" => root.to_path_buf(),
            c if c.split(',').any(|c| c == "cpu") => root.join(c),
            _ => continue,
        };
        let mut folder = base.join(path.trim_start_matches('/'));
        while folder.starts_with(&base) {
            if let Some(cpus) = quota_of(&folder) {
                least = Some(least.map_or(cpus, |l| l.min(cpus)));
            }
            if !folder.pop() {
                break;
            }
        }
    }
    least.map(|cpus| (cpus.ceil() as usize).max(1))
}

fn quota_of(folder: &Path) -> Option<f64> {
    let number = |file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse::<f64>().ok();
    let (quota, period) = match std::fs::read_to_string(folder.join("cpu.max")) {
        Ok(text) => {
            let mut words = text.split_whitespace();
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?)
        }
        Err(_) => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
    };
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_for_each_core() {
        // Four logical CPUs on two cores of one package, one CPU not allowed, one of unknown place.
        let core = |cpu: usize| (cpu < 4).then_some((0, (cpu % 2) as i64));
        assert_eq!(physical(&[0, 1, 2, 3], core), vec![0, 1]);
        assert_eq!(physical(&[2, 3, 1, 9], core), vec![2, 3, 9]);
    }

    #[test]
    fn quota_is_the_least_of_the_ancestors() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cg");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/cpu.max"), "150000 100000\n").unwrap();
        std::fs::write(root.join("a/b/cpu.max"), "max 100000\n").unwrap();
        let membership = dir.path().join("cgroup");
        std::fs::write(&membership, "0::/a/b\n").unwrap();
        assert_eq!(cgroup_quota(&root, &membership), Some(2));
        std::fs::write(root.join("a/cpu.max"), "max 100000\n").unwrap();
        assert_eq!(cgroup_quota(&root, &membership), None);
    }
}
