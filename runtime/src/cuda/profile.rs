//! Where the time of a decode step goes: each operator's launches replayed alone, over all layers.

use super::emit::Emitted;
use bloomery_kernels_gpu::{Command, GpuError, Machine};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// One operator of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorTime {
    /// What it computes.
    pub operator: String,
    /// Launches of a step.
    pub launches: usize,
    /// Time of all of them.
    pub time: Duration,
    /// Bytes of weights and of the store that they read.
    pub bytes: u64,
}

/// A measured step.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Rows of the step.
    pub rows: usize,
    /// The operators, slowest first.
    pub operators: Vec<OperatorTime>,
    /// The whole step, replayed as it runs.
    pub step: Duration,
    /// The same with every launch waiting for the end of the one before.
    pub apart: Duration,
    /// Copying within the card, bytes read and written a second.
    pub bandwidth: f64,
}

/// Replays of each recording; the median counts.
const REPLAYS: usize = 9;

/// Measures a step's launches. Their results are of no use afterwards.
pub(crate) fn measure(
    machine: &mut dyn Machine,
    rows: usize,
    emitted: &Emitted,
    bandwidth: f64,
) -> Result<Profile, GpuError> {
    let mut groups: BTreeMap<&str, (Vec<Command>, u64)> = BTreeMap::new();
    for (command, label) in emitted.commands.iter().zip(&emitted.labels) {
        let group = groups.entry(label.operator).or_default();
        group.0.push(command.clone());
        group.1 += label.bytes;
    }
    let step = replayed(machine, &emitted.commands)?;
    let mut apart = emitted.commands.clone();
    super::executor::apart(&mut apart);
    let apart = replayed(machine, &apart)?;
    let mut operators = Vec::with_capacity(groups.len());
    for (operator, (commands, bytes)) in groups {
        let time = replayed(machine, &commands)?;
        operators.push(OperatorTime {
            operator: operator.to_string(),
            launches: commands.len(),
            time,
            bytes,
        });
    }
    operators.sort_by_key(|operator| std::cmp::Reverse(operator.time));
    Ok(Profile { rows, operators, step, apart, bandwidth })
}

fn replayed(machine: &mut dyn Machine, commands: &[Command]) -> Result<Duration, GpuError> {
    let recording = machine.record(commands)?;
    machine.time(recording, 2)?;
    let mut times = (0..REPLAYS).map(|_| machine.time(recording, 1)).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times[REPLAYS / 2])
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
        let share = |bytes: u64, time: Duration| {
            100.0 * bytes as f64 / time.as_secs_f64().max(1e-12) / self.bandwidth.max(1.0)
        };
        let launches: usize = self.operators.iter().map(|operator| operator.launches).sum();
        let bytes: u64 = self.operators.iter().map(|operator| operator.bytes).sum();
        writeln!(
            f,
            "step of {} rows: {:.1} us ({:.1} us without overlap), {launches} launches, {:.1} MB read, {:.0} % of {:.0} GB/s",
            self.rows,
            microseconds(self.step),
            microseconds(self.apart),
            bytes as f64 / 1e6,
            share(bytes, self.step),
            self.bandwidth / 1e9
        )?;
        writeln!(f, "| operator | launches | us | us a launch | MB | GB/s | % of bandwidth |")?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
        for operator in &self.operators {
            let us = microseconds(operator.time);
            writeln!(
                f,
                "| {} | {} | {us:.1} | {:.2} | {:.1} | {:.0} | {:.0} |",
                operator.operator,
                operator.launches,
                us / operator.launches.max(1) as f64,
                operator.bytes as f64 / 1e6,
                operator.bytes as f64 / us.max(1e-9) / 1e3,
                share(operator.bytes, operator.time)
            )?;
        }
        let alone: f64 = self.operators.iter().map(|operator| microseconds(operator.time)).sum();
        write!(f, "operators alone: {alone:.1} us together")
    }
}
