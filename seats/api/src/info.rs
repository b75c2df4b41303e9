//! What a seat says about itself before any of its code runs.

use bloomery_program::Version;
use serde::{Deserialize, Serialize};

/// The table's `info`, as JSON. Fields that a later SDK adds are for display only, so readers skip unknown ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatInfo {
    /// Name, unique among the seats of a host.
    pub name: String,
    /// The seat's own version.
    pub version: String,
    /// Its licence, as an SPDX expression; may be empty.
    pub licence: String,
    /// The `general.architecture` strings that it claims.
    pub architectures: Vec<String>,
    /// Version of the program language that it was built with: the highest that it may answer in.
    pub language: Version,
}

impl SeatInfo {
    /// Reads the table's `info`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(json: &str) -> Result<SeatInfo, String> {
        let info: SeatInfo =
            serde_json::from_str(json).map_err(|e| format!("its info is no seat info: {e}"))?;
        let plain = |s: &str| {
            !s.is_empty()
                && s.len() <= 64
                && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if !plain(&info.name) {
            return Err(format!("its name {:?} is not 1 to 64 letters, digits, `.`, `_` or `-`", info.name));
        }
        if info.architectures.is_empty() || !info.architectures.iter().all(|a| plain(a)) {
            return Err(format!(
                "its architectures {:?} are not a list of `general.architecture` strings",
                info.architectures
            ));
        }
        Ok(info)
    }
}
