//! The time that templates see; tests put their own in.

/// Where templates take the time from.
#[derive(Debug, Clone, Copy)]
pub struct Clock(fn() -> jiff::Zoned);

impl Clock {
    /// The system's clock in its time zone.
    pub const SYSTEM: Self = Self(jiff::Zoned::now);

    /// Another source of time.
    #[must_use]
    pub const fn new(now: fn() -> jiff::Zoned) -> Self {
        Self(now)
    }

    /// The time now in `strftime`'s language.
    ///
    /// # Errors
    /// A format that is not understood; the message names it.
    pub fn format(self, format: &str) -> Result<String, String> {
        jiff::fmt::strtime::format(format, &(self.0)())
            .map_err(|error| format!("strftime_now({format:?}): {error}"))
    }
}
