//! The two checksums that the hub gives: SHA-256 of a large file, git's object id of a small one.

use std::io::Read;

use sha2::Digest as _;

/// A checksum that a file must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Digest {
    /// SHA-256 of the content, lower-case hexadecimal.
    Sha256(String),
    /// SHA-1 of `blob SIZE\0` and the content: the id that git gives a file.
    Git(String),
}

impl Digest {
    pub(crate) fn sha256(text: &str) -> Option<Self> {
        hexadecimal(text, 64).map(Digest::Sha256)
    }

    pub(crate) fn git(text: &str) -> Option<Self> {
        hexadecimal(text, 40).map(Digest::Git)
    }

    /// The checksum as text, which is also the file's name among the cache's blobs.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Digest::Sha256(text) | Digest::Git(text) => text,
        }
    }

    /// A hasher for a file of `size` bytes.
    pub(crate) fn hasher(&self, size: u64) -> Hasher {
        match self {
            Digest::Sha256(_) => Hasher::Sha256(sha2::Sha256::new()),
            Digest::Git(_) => {
                let mut hasher = sha1::Sha1::new();
                hasher.update(format!("blob {size}\0"));
                Hasher::Git(hasher)
            }
        }
    }
}

/// Computes a checksum as the bytes come.
#[derive(Clone)]
pub(crate) enum Hasher {
    Sha256(sha2::Sha256),
    Git(sha1::Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Git(hasher) => hasher.update(bytes),
        }
    }

    /// Takes in all that `input` has and says how much that was.
    pub(crate) fn read_all(&mut self, input: &mut impl Read) -> std::io::Result<u64> {
        let mut buffer = vec![0; 1 << 16];
        let mut total = 0;
        loop {
            let count = input.read(&mut buffer)?;
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { return Ok(total) };
            self.update(bytes);
            total += count as u64;
        }
    }

    pub(crate) fn finish(self) -> String {
        let bytes = match self {
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
            Hasher::Git(hasher) => hasher.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn hexadecimal(text: &str, length: usize) -> Option<String> {
    let valid = text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(digest: &Digest, content: &[u8]) -> String {
        let mut hasher = digest.hasher(content.len() as u64);
        assert_eq!(hasher.read_all(&mut &*content).unwrap(), content.len() as u64);
        hasher.finish()
    }

    #[test]
    fn known_checksums() {
        // `git hash-object` and `sha256sum` of "abc\n" and of nothing.
        let git = Digest::git("8baef1b4abc478178b004d62031cf7fe6db6f903").unwrap();
        assert_eq!(of(&git, b"abc\n"), git.as_str());
        let sha = Digest::sha256("EDEAAFF3F1774AD2888673770C6D64097E391BC362D7D6FB34982DDF0EFD18CB").unwrap();
        assert_eq!(of(&sha, b"abc\n"), sha.as_str());
        let empty =
            Digest::sha256("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855").unwrap();
        assert_eq!(of(&empty, b""), empty.as_str());
    }

    #[test]
    fn a_checksum_is_hexadecimal_of_the_right_length() {
        assert_eq!(Digest::sha256("../../etc/passwd"), None);
        assert_eq!(Digest::git(&"g".repeat(40)), None);
        assert_eq!(Digest::sha256(&"a".repeat(40)), None);
    }
}
