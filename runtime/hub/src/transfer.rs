//! Brings one file over: in pieces, so that a stalled connection is noticed; going on where an earlier attempt stopped;
//! and with the checksum computed as the bytes come, so that a file of 100 GB is not read a second time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;

use ureq::http::StatusCode;

use crate::digest::Hasher;
use crate::error::HubError;
use crate::event::Event;
use crate::listing::RemoteFile;

/// Bytes asked for at once. A piece that takes longer than [`PIECE_TIME`] is broken off and asked for again from where
/// it was: on a slow line that costs one request, on a dead one it ends the wait.
const PIECE: u64 = 64 << 20;
const PIECE_TIME: Duration = Duration::from_secs(120);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub(crate) struct Transfer<'a> {
    pub agent: &'a ureq::Agent,
    pub repo: &'a str,
    pub endpoint: &'a str,
    pub url: String,
    pub token: Option<&'a str>,
    pub file: &'a RemoteFile,
    pub part: PathBuf,
    pub attempts: u32,
    pub pause: Duration,
}

/// The bytes that are here, and the checksum over them.
struct Received {
    out: File,
    have: u64,
    hasher: Hasher,
}

/// Why a piece did not arrive.
enum Fault {
    /// Worth another attempt.
    Passing(String),
    /// Not.
    Final(HubError),
}

impl Transfer<'_> {
    /// Leaves the complete and checked file at `part`.
    pub(crate) fn run(&self, report: &mut dyn FnMut(Event)) -> Result<(), HubError> {
        let mut received = self.open(report)?;
        let (file, size) = (self.file.name.clone(), self.file.size);
        report(Event::Started { file, size, have: received.have });
        let mut ranges = true;
        let mut stalled = 0;
        while received.have < size {
            let before = received.have;
            let fault = match self.piece(&mut received, &mut ranges, report) {
                Ok(()) if received.have > before => None,
                Ok(()) => Some("the answer was empty".to_owned()),
                Err(Fault::Passing(problem)) => Some(problem),
                Err(Fault::Final(error)) => return Err(error),
            };
            let Some(problem) = fault else {
                stalled = 0;
                continue;
            };
            stalled = if received.have > before { 1 } else { stalled + 1 };
            if stalled >= self.attempts {
                let (file, received) = (self.file.name.clone(), received.have);
                return Err(HubError::BrokenOff { file, received, size, problem });
            }
            report(Event::Retrying { problem, attempt: stalled });
            let factor = 1_u32.checked_shl(stalled - 1).unwrap_or(u32::MAX);
            std::thread::sleep(self.pause.saturating_mul(factor).min(LONGEST_PAUSE));
        }
        self.check(received)
    }

    /// Opens what an earlier attempt left and computes the checksum over it.
    fn open(&self, report: &mut dyn FnMut(Event)) -> Result<Received, HubError> {
        let io = || HubError::io(&self.part);
        let mut out = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.part)
            .map_err(io())?;
        out.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => {
                HubError::Busy { file: self.file.name.clone(), path: self.part.clone() }
            }
            std::fs::TryLockError::Error(error) => io()(error),
        })?;
        match out.metadata().map_err(io())?.len() {
            0 => {}
            // Longer than the file: of another file, or of another program.
            left if left > self.file.size => out.set_len(0).map_err(io())?,
            have => report(Event::Checking { file: self.file.name.clone(), have }),
        }
        let mut hasher = self.file.digest.hasher(self.file.size);
        let have = hasher.read_all(&mut out).map_err(io())?;
        Ok(Received { out, have, hasher })
    }

    /// Asks for the next piece and takes in what comes. `ranges` turns false when the server is seen to send whole files
    /// only.
    fn piece(
        &self,
        received: &mut Received,
        ranges: &mut bool,
        report: &mut dyn FnMut(Event),
    ) -> Result<(), Fault> {
        // Ranges count the file's own bytes, so nothing on the way may compress them.
        let mut request = self.agent.get(&self.url).header("Accept-Encoding", "identity");
        if let Some(token) = self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if *ranges {
            let last = received.have.saturating_add(PIECE).min(self.file.size).saturating_sub(1);
            request = request.header("Range", format!("bytes={}-{last}", received.have));
            request = request.config().timeout_recv_body(Some(PIECE_TIME)).build();
        }
        let response = request.call().map_err(|error| self.refused(error))?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get("Content-Range").and_then(|value| value.to_str().ok());
                if range.and_then(parse_content_range) != Some((received.have, self.file.size)) {
                    let problem = format!("{}: it sent range {range:?}", self.file.name);
                    return Err(Fault::Final(self.bad_answer(problem)));
                }
            }
            StatusCode::OK => {
                // The whole file from its start. Its time must not be bounded, so it is asked for again without a bound.
                received.restart(self)?;
                if *ranges && self.file.size > PIECE {
                    *ranges = false;
                    return self.piece(received, ranges, report);
                }
            }
            status => {
                let problem = format!("{}: unexpected status {status}", self.file.name);
                return Err(Fault::Final(self.bad_answer(problem)));
            }
        }
        self.take_in(received, response.into_body().into_reader(), report)
    }

    fn take_in(
        &self,
        received: &mut Received,
        mut body: impl Read,
        report: &mut dyn FnMut(Event),
    ) -> Result<(), Fault> {
        let mut buffer = vec![0; 1 << 17];
        loop {
            let count = body.read(&mut buffer).map_err(|error| Fault::Passing(error.to_string()))?;
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
            if received.have.saturating_add(count as u64) > self.file.size {
                self.discard();
                let problem = format!("{} is longer than announced", self.file.name);
                return Err(Fault::Final(self.bad_answer(problem)));
            }
            received.out.write_all(bytes).map_err(|error| Fault::Final(HubError::io(&self.part)(error)))?;
            received.hasher.update(bytes);
            received.have += count as u64;
            report(Event::Advanced { have: received.have });
        }
    }

    fn check(&self, received: Received) -> Result<(), HubError> {
        let found = received.hasher.finish();
        let expected = self.file.digest.as_str().to_owned();
        if found != expected {
            self.discard();
            return Err(HubError::WrongChecksum { file: self.file.name.clone(), expected, found });
        }
        // The name that says "complete" must not reach the disk before the bytes do.
        received.out.sync_all().map_err(HubError::io(&self.part))
    }

    /// Removes bytes that are known to be wrong. If that fails, the next run finds them, and finds them wrong again.
    fn discard(&self) {
        let _ = std::fs::remove_file(&self.part);
    }

    fn refused(&self, error: ureq::Error) -> Fault {
        match error {
            ureq::Error::StatusCode(status @ (401 | 403)) => {
                Fault::Final(HubError::Denied { repo: self.repo.to_owned(), status })
            }
            ureq::Error::StatusCode(status) if status < 500 && status != 408 && status != 429 => {
                Fault::Final(self.bad_answer(format!("{}: status {status}", self.file.name)))
            }
            error => Fault::Passing(error.to_string()),
        }
    }

    fn bad_answer(&self, problem: String) -> HubError {
        let (repo, endpoint) = (self.repo.to_owned(), self.endpoint.to_owned());
        HubError::BadAnswer { repo, endpoint, problem }
    }
}

impl Received {
    fn restart(&mut self, transfer: &Transfer<'_>) -> Result<(), Fault> {
        let emptied = self.out.set_len(0).and_then(|()| self.out.seek(SeekFrom::Start(0)));
        emptied.map_err(|error| Fault::Final(HubError::io(&transfer.part)(error)))?;
        self.have = 0;
        self.hasher = transfer.file.digest.hasher(transfer.file.size);
        Ok(())
    }
}

/// Start and total of `bytes 100-199/1000`.
fn parse_content_range(text: &str) -> Option<(u64, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse_content_range;

    #[test]
    fn content_range() {
        assert_eq!(parse_content_range("bytes 100-199/1000"), Some((100, 1000)));
        for wrong in ["", "bytes */1000", "bytes 1-2/*", "items 1-2/3", "bytes 1/2"] {
            assert_eq!(parse_content_range(wrong), None, "{wrong}");
        }
    }
}
