//! Seats as a person reads them.

use crate::discover::{Origin, Seats};
use crate::error::SeatError;
use std::collections::BTreeSet;
use std::fmt;

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::NamedFile => "named",
            Origin::NamedFolder => "--seats-dir",
            Origin::Environment => "$BLOOMERY_SEATS",
            Origin::Config => "plugins.toml",
            Origin::Beside => "beside the program",
        })
    }
}

/// What `--list-seats` and `seat list` print: usable seats, architectures and who serves them, files that are not used and why.
impl fmt::Display for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fault) = &self.config_fault {
            writeln!(f, "no seat is used: {}", fault.with_hint())?;
        }
        writeln!(f, "seats:")?;
        for seat in self.usable() {
            let info = &seat.info;
            let licence = if info.licence.is_empty() { "no licence stated" } else { &info.licence };
            writeln!(
                f,
                "  {} {} ({licence}): {}; language {}{}",
                info.name,
                info.version,
                info.architectures.join(", "),
                info.language,
                match (seat.cpu_op, seat.allow_native) {
                    (false, _) => "",
                    (true, true) => "; own operators, allowed",
                    (true, false) => "; own operators, not allowed",
                }
            )?;
            writeln!(f, "      {} ({})", seat.path.display(), seat.origin)?;
        }
        if self.usable().next().is_none() {
            writeln!(f, "  none")?;
        }
        let architectures: BTreeSet<&str> = self.architectures();
        if !architectures.is_empty() {
            writeln!(f, "architectures:")?;
        }
        for architecture in architectures {
            match self.choose(architecture, None) {
                Ok(seat) => writeln!(f, "  {architecture}: {}", seat.info.name)?,
                Err(SeatError::Config { .. }) => {}
                Err(why) => writeln!(f, "  {architecture}: nobody: {}", why.with_hint())?,
            }
        }
        if self.unused().next().is_some() {
            writeln!(f, "not used:")?;
        }
        for (candidate, why) in self.unused() {
            writeln!(f, "  {} ({}): {}", candidate.path.display(), candidate.origin, why.with_hint())?;
        }
        Ok(())
    }
}
