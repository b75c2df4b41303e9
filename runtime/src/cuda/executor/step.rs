//! One step: given to the card, waited for, read.

use super::super::emit::{Emitted, Emitter};
use super::CudaExecutor;
use crate::cpu::step::Work;
use crate::executor::{Row, SequenceError, StepError, StepOutput};
use bloomery_kernels_gpu::{Command, GpuError, RecordingId};
use std::ops::Range;
use std::time::Duration;

/// Every launch waits for the end of the one before.
pub(in super::super) fn apart(commands: &mut [Command]) {
    for command in commands {
        if let Command::Launch(launch) = command {
            launch.overlaps = false;
        }
    }
}

impl CudaExecutor {
    /// The launches of a range of steps for this size, with what each is for. Of the `wanted` rows that want results, a turn's are
    /// computed behind the tail.
    pub(super) fn emit(
        &mut self,
        rows: usize,
        wanted: usize,
        range: Range<usize>,
    ) -> Result<Emitted, GpuError> {
        let mut emitter = Emitter {
            input: self.input.place(rows)?,
            machine: &mut *self.machine,
            lowered: &self.lowered,
            joins: &self.joins,
            weights: &self.weights,
            rotations: &self.rotations,
            buffers: &self.buffers,
            source: &*self.source,
            max_tokens: self.shape.max_tokens,
            sequences: self.input.tables(),
            table_pages: self.input.table_pages(),
            rows,
            wanted,
            tail: wanted.min(self.max_tail),
            out: Emitted::default(),
        };
        emitter.steps(range)?;
        Ok(emitter.out)
    }

    /// Everything of a step that does not change while its size stays: the copies up and down stand at its ends.
    pub(super) fn commands(&mut self, rows: usize, wanted: usize) -> Result<Vec<Command>, GpuError> {
        let mut commands = vec![self.input.upload(rows)?];
        commands.extend(self.emit(rows, wanted, 0..self.lowered.steps.len())?.commands);
        commands.push(self.buffers.send_report());
        Ok(commands)
    }

    /// Gives the card everything but the fetching of results. Rows that want results beyond the first `max_tail` are left to
    /// further turns.
    pub(super) fn give(&mut self) -> Result<(), GpuError> {
        let mut commands = Vec::new();
        self.sequences.store.take_copies(&mut commands)?;
        let (_, sequences) = self.sequences.split();
        let pages = |id| sequences.get(&id).map(|sequence| &sequence.pages[..]);
        self.input.fill(&mut *self.machine, &self.admitted, pages, &mut commands)?;
        self.machine.run(&commands)?;
        let (rows, wanted) = (self.admitted.tokens.len(), self.admitted.tail.len());
        if rows > self.max_recorded {
            let commands = self.commands(rows, wanted)?;
            return self.machine.run(&commands);
        }
        let recording = match self.recordings.get(&(rows, wanted)) {
            Some(known) => *known,
            None => {
                let commands = self.commands(rows, wanted)?;
                let recording = self.record(commands)?;
                self.recordings.insert((rows, wanted), recording);
                recording
            }
        };
        self.machine.replay(recording)
    }

    /// Records a step. The first one is timed with launches that overlap and without, and the faster way is kept: a replayed step
    /// writes what it wrote before.
    fn record(&mut self, mut commands: Vec<Command>) -> Result<RecordingId, GpuError> {
        match self.overlap {
            None if self.machine.overlaps() => {
                let together = self.machine.record(&commands)?;
                apart(&mut commands);
                let alone = self.machine.record(&commands)?;
                let mut best = [Duration::MAX; 2];
                for _ in 0..4 {
                    for (recording, best) in [together, alone].into_iter().zip(&mut best) {
                        *best = (*best).min(self.machine.time(recording, 2)?);
                    }
                }
                let faster = best[0] < best[1];
                tracing::debug!(together = ?best[0] / 2, apart = ?best[1] / 2, "time of a recorded step");
                self.overlap = Some(faster);
                Ok(if faster { together } else { alone })
            }
            Some(true) => self.machine.record(&commands),
            _ => {
                apart(&mut commands);
                self.machine.record(&commands)
            }
        }
    }

    /// A further turn of the tail: rows `done ..` of those that want results. The steps before the tail stand.
    pub(super) fn next_turn(&mut self, done: usize) -> Result<usize, GpuError> {
        let rows = self.admitted.tokens.len();
        let turn = (self.admitted.tail.len() - done).min(self.max_tail);
        self.input.turn(&mut *self.machine, &self.admitted, done, turn)?;
        let first = self.lowered.steps[..self.lowered.tail]
            .iter()
            .rposition(|step| !matches!(step.work, Work::Gather { .. }))
            .map_or(0, |last| last + 1);
        let mut commands = vec![self.input.upload(rows)?];
        commands.extend(self.emit(rows, turn, first..self.lowered.steps.len())?.commands);
        commands.push(self.buffers.send_report());
        self.machine.run(&commands)?;
        Ok(turn)
    }

    pub(super) fn step(&mut self, rows: &[Row]) -> Result<StepOutput<'_>, StepError> {
        if self.lost {
            return Err(StepError::Executor("it failed before and was not reset".into()));
        }
        self.admitted.admit(rows, &mut self.sequences, &self.shape, self.tokens)?;
        if self.admitted.groups.len() > self.input.tables() {
            let (n, most) = (self.admitted.groups.len(), self.input.tables());
            return Err(StepError::Malformed(format!("{n} sequences in a step, at most {most} are taken")));
        }
        if rows.is_empty() {
            return Ok(StepOutput { logits: &[], hidden: &[] });
        }
        // From here on a failure leaves the state half moved.
        self.lost = true;
        self.compute(rows).map_err(|error| StepError::Executor(error.to_string()))?;
        if let Some(error) = self.fault.take() {
            // Nothing has advanced: the other sequences run again without this one.
            self.lost = false;
            return Err(error);
        }
        self.admitted.advance(&mut self.sequences);
        self.lost = false;
        let width = self.shape.n_vocab;
        let wanted = rows.iter().filter(|row| row.wants_logits).count();
        let logits = match (wanted, self.gathered.is_empty()) {
            (0, _) => &[],
            (_, false) => &self.gathered[..],
            (_, true) => {
                let failed = |error: GpuError| StepError::Executor(error.to_string());
                self.buffers.logits(&mut *self.machine, wanted, width).map_err(failed)?
            }
        };
        Ok(StepOutput { logits, hidden: &self.hidden })
    }

    /// Runs the admitted rows and waits for them. Logits of a step in one turn stay in pinned memory; others are gathered.
    pub(super) fn compute(&mut self, rows: &[Row]) -> Result<(), GpuError> {
        let hidden_known = self.shape.n_hidden > 0;
        let wanted = |row: &&Row| row.wants_logits || (row.wants_hidden && hidden_known);
        let tail: Vec<(bool, bool)> =
            rows.iter().filter(wanted).map(|row| (row.wants_logits, row.wants_hidden)).collect();
        self.hidden.clear();
        self.gathered.clear();
        self.give()?;
        let mut turn = tail.len().min(self.max_tail);
        let mut done = 0;
        loop {
            let part = &tail[done..done + turn];
            let logits = part.iter().any(|(logits, _)| *logits);
            if let (true, Some((slot, width))) = (logits, self.lowered.logits) {
                let command = self.buffers.send_logits(slot, turn, width)?;
                self.machine.run(&[command])?;
            }
            self.machine.wait()?;
            self.look_for_faults()?;
            if let (Some((slot, width)), true) = (self.lowered.hidden, part.iter().any(|(_, hidden)| *hidden))
            {
                let mut all = vec![0f32; turn * width];
                let from = self.buffers.rows_of(slot, turn, width)?;
                self.machine.read(from, bytemuck::cast_slice_mut(&mut all))?;
                let wanted = part.iter().zip(all.chunks_exact(width)).filter(|((_, hidden), _)| *hidden);
                wanted.for_each(|(_, values)| self.hidden.extend_from_slice(values));
            }
            let whole = turn == tail.len() && part.iter().all(|(logits, _)| *logits);
            if logits && !whole {
                let width = self.shape.n_vocab;
                let all = self.buffers.logits(&mut *self.machine, turn, width)?;
                let wanted = part.iter().zip(all.chunks_exact(width)).filter(|((logits, _), _)| *logits);
                wanted.for_each(|(_, values)| self.gathered.extend_from_slice(values));
            }
            done += turn;
            if done >= tail.len() || self.fault.is_some() {
                return Ok(());
            }
            turn = self.next_turn(done)?;
        }
    }

    /// A kernel that met something impossible said so: the sequence of that row fails, with the name of the place.
    pub(super) fn look_for_faults(&mut self) -> Result<(), GpuError> {
        let report = self.buffers.read_report(&mut *self.machine)?;
        if report[0] == 0 {
            return Ok(());
        }
        self.machine.run(&[Command::Clear(self.buffers.report)])?;
        let (code, step, row) = (report[0], report[1], report[2] as usize);
        let what = match code {
            1 => "a value that is no number",
            2 => "an index out of range",
            _ => "an overflow of a table",
        };
        let place = self.lowered.steps.get(step as usize).map_or("", |step| step.place());
        let group = self
            .admitted
            .groups
            .iter()
            .find(|group| (group.first_row..group.first_row + group.rows).contains(&row));
        let Some(group) = group.or(self.admitted.groups.first()) else { return Ok(()) };
        let error = SequenceError::Failed(format!("the card met {what} at step {step} {place} (row {row})"));
        tracing::error!(%error, "a kernel reported a fault");
        self.fault = Some(StepError::Sequence { sequence: group.sequence, error });
        Ok(())
    }
}
