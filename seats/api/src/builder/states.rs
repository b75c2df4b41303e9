//! Per-sequence state. A state is named after its scope: `l3.kv`.

use super::GraphBuilder;
use crate::names;
use bloomery_program::{Part, PartRole, Rollback, State, StateId, StateKind};

impl GraphBuilder<'_, '_> {
    /// Declares a state. `name` is prefixed by the scope.
    pub fn state(&mut self, name: &str, kind: StateKind, rollback: Rollback) -> StateId {
        let name = format!("{}{name}", names::prefix(&self.scope));
        self.program.states.push(State { name, kind, rollback });
        StateId(self.program.states.len() as u32 - 1)
    }

    /// A store of keys and values, one row a token, `key` and `value` values wide over all heads. With a window only the
    /// last so many tokens are kept. Rolled back by truncation.
    pub fn key_value_store(&mut self, name: &str, key: u32, value: u32, window: Option<u32>) -> StateId {
        let parts =
            vec![Part { width: key, role: PartRole::Key }, Part { width: value, role: PartRole::Value }];
        self.state(name, StateKind::Rows { parts, every: 1, window }, Rollback::Truncate)
    }

    /// A store of single rows that serve as key and value at once (latent attention), one for every `every` tokens.
    pub fn latent_store(&mut self, name: &str, width: u32, every: u32, window: Option<u32>) -> StateId {
        let parts = vec![Part { width, role: PartRole::Key }];
        self.state(name, StateKind::Rows { parts, every, window }, Rollback::Truncate)
    }

    /// The last `rows` rows of a value, for convolutions and pools. Rolled back from a snapshot.
    pub fn recent_rows(&mut self, name: &str, rows: u32, width: u32) -> StateId {
        self.state(name, StateKind::Recent { rows, width }, Rollback::Snapshot)
    }

    /// A recurrent block, dimensions slowest first. Rolled back from a snapshot.
    pub fn recurrent(&mut self, name: &str, dims: &[u32]) -> StateId {
        self.state(name, StateKind::Recurrent { dims: dims.to_vec() }, Rollback::Snapshot)
    }

    /// The last `count` token ids. Rolled back from a snapshot.
    pub fn last_tokens(&mut self, name: &str, count: u32) -> StateId {
        self.state(name, StateKind::Tokens { count }, Rollback::Snapshot)
    }
}
