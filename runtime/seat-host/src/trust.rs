//! Whether somebody else could put other code in a seat's place.

use crate::error::SeatError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Refuses a file or folder that others could change. The thing itself and the folder it lies in must belong to root, to
/// this user or to the owner of the running program, and be writable by no others and no shared group. A folder
/// further up must not be writable by others unless it is sticky, as `/tmp` is; whose it is is not asked, since containers
/// commonly run as root on somebody's checkout.
///
/// # Errors
/// [`SeatError::Untrusted`] with the part of the path that is too open, [`SeatError::Read`] when it cannot be looked at.
pub fn check(path: &Path) -> Result<(), SeatError> {
    let read = |e: std::io::Error| SeatError::Read { message: e.to_string() };
    let path = path.canonicalize().map_err(read)?;
    let mut trusted = vec![0, rustix::process::geteuid().as_raw()];
    if let Ok(program) = std::fs::metadata("/proc/self/exe") {
        trusted.push(program.uid());
    }
    for (depth, part) in path.ancestors().enumerate() {
        let facts = std::fs::metadata(part).map_err(read)?;
        let untrusted = |what: String| Err(SeatError::Untrusted { path: part.into(), what });
        if depth <= 1 && !trusted.contains(&facts.uid()) {
            return untrusted(format!("belongs to user {}", facts.uid()));
        }
        let mode = facts.mode();
        let sticky = depth > 1 && mode & STICKY != 0;
        if mode & OTHERS_WRITE != 0 && !sticky {
            return untrusted("can be changed by everybody".into());
        }
        // A group of the owner's own number is by convention the owner alone: files are made so under umask 002.
        if depth <= 1 && mode & GROUP_WRITES != 0 && facts.gid() != facts.uid() {
            return untrusted(format!("can be changed by group {}", facts.gid()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_others_can_write_is_refused_with_the_place() {
        let root = tempfile::tempdir().expect("folder");
        let folder = root.path().join("seats");
        create_dir(&folder).expect("made");
        let file = folder.join("libx.so");
        write(&file, b"x").expect("written");
        let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).expect("mode");
        mode(root.path(), 0o755);
        mode(&folder, 0o755);
        mode(&file, 0o644);
        assert_eq!(check(&file), Ok(()));
        mode(&file, 0o664);
        assert_eq!(check(&file).is_ok(), std::fs::metadata(&file).is_ok_and(|f| f.uid() == f.gid()));
        for (path, open, safe) in [(&file, 0o666, 0o644), (&file, 0o646, 0o644), (&folder, 0o777, 0o755)] {
            mode(path, open);
            let Err(SeatError::Untrusted { path: named, .. }) = check(&file) else { panic!("{open:o}") };
            assert_eq!(&named, path);
            mode(path, safe);
        }
        mode(&folder, 0o1777);
        assert!(check(&file).is_err(), "others may add seats to a sticky folder");
        mode(&folder, 0o755);
        mode(root.path(), 0o777);
        assert!(check(&file).is_err(), "others may replace the folder");
        mode(root.path(), 0o1777);
        assert_eq!(check(&file), Ok(()), "a sticky folder further up is no danger");
        mode(root.path(), 0o755);
        assert!(matches!(check(&folder.join("gone.so")), Err(SeatError::Read { .. })));
    }
}
