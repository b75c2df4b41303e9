//! The router, its experts, and heads beyond the plain projection.

use super::exactly;
use crate::builder::GraphBuilder;
use crate::error::Result;
use bloomery_program::op::{Clamp, Function, Route, Score};
use bloomery_program::{Op, ValueId};

impl GraphBuilder<'_, '_> {
    /// Ids and weights of each row's experts; `bias` shifts the choice. Named `ffn_moe_topk` and `ffn_moe_weights`, with
    /// `_norm` and `_scaled` where the weights are.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn route(&mut self, logits: ValueId, bias: Option<&str>, route: Route) -> Result<(ValueId, ValueId)> {
        let mut tensors = vec![];
        if let Some(bias) = bias {
            tensors.push(("bias", self.tensor(bias)?));
        }
        self.route_node(&[logits], &tensors, route)
    }

    /// Experts by token id: the table gives the ids, the logits their weights.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn route_by_table(
        &mut self,
        logits: ValueId,
        tokens: ValueId,
        table: &str,
        route: Route,
    ) -> Result<(ValueId, ValueId)> {
        let tensors = [("table", self.tensor(table)?)];
        self.route_node(&[logits, tokens], &tensors, route)
    }

    fn route_node(
        &mut self,
        operands: &[ValueId],
        tensors: &[(&str, String)],
        route: Route,
    ) -> Result<(ValueId, ValueId)> {
        let weights = match (route.scale != 1.0, route.normalize || route.score == Score::SoftmaxChosen) {
            (true, _) => "ffn_moe_weights_scaled",
            (false, true) => "ffn_moe_weights_norm",
            (false, false) => "ffn_moe_weights",
        };
        let values = self.node(Op::Route(route), operands, tensors, &["ffn_moe_topk", weights])?;
        let [ids, weights] = exactly(values)?;
        Ok((ids, weights))
    }

    /// The routed experts of width `ff`. Tensors `{stem}_gate_exps`, `_up_exps`, `_down_exps`, or a joined
    /// `_gate_up_exps`, with their biases where the file has them; the stem is `ffn` in every family so far.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`], and a tensor of other dimensions.
    pub fn experts(
        &mut self,
        x: ValueId,
        (ids, weights): (ValueId, ValueId),
        stem: &str,
        (experts, used, ff): (u32, u32, u32),
        act: Function,
        clamp: Option<Clamp>,
    ) -> Result<ValueId> {
        let (width, n, ff) = (Some(u64::from(self.width(x)?)), Some(u64::from(experts)), u64::from(ff));
        let joined = format!("{stem}_gate_up_exps");
        let mut parts = vec![("down", "down_bias", format!("{stem}_down_exps"), [Some(ff), width, n])];
        if self.has(&joined) {
            parts.push(("gate_up", "gate_up_bias", joined, [width, Some(ff * 2), n]));
        } else {
            parts.push(("gate", "gate_bias", format!("{stem}_gate_exps"), [width, Some(ff), n]));
            parts.push(("up", "up_bias", format!("{stem}_up_exps"), [width, Some(ff), n]));
        }
        let mut tensors = vec![];
        for (role, bias_role, tensor, dims) in parts {
            tensors.push((role, self.shaped(&tensor, &dims)?));
            let bias = format!("{}.bias", self.path(&tensor));
            if self.facts().has(&bias) && bias_role != "gate_up_bias" {
                tensors.push((bias_role, bias));
            }
        }
        self.one(Op::Experts { experts, used, act, clamp }, &[x, ids, weights], &tensors, "ffn_moe_out")
    }

    /// Logits shifted by the previous row's choice, and the confidence in each.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn markov_chain(
        &mut self,
        (logits, hidden, tokens): (ValueId, ValueId, ValueId),
        w1: &str,
        w2: &str,
        confidence: &str,
        rank: u32,
    ) -> Result<(ValueId, ValueId)> {
        let tensors =
            [("w1", self.tensor(w1)?), ("w2", self.tensor(w2)?), ("confidence", self.tensor(confidence)?)];
        let values = self.node(
            Op::MarkovChain { rank },
            &[logits, hidden, tokens],
            &tensors,
            &["markov_logits", "confidence"],
        )?;
        let [logits, confidence] = exactly(values)?;
        Ok((logits, confidence))
    }

    /// The joint decision head; `op` must be [`Op::DecisionHead`], `tensors` are pairs of role and full name.
    ///
    /// # Errors
    /// As [`GraphBuilder::node`].
    pub fn decision_head(
        &mut self,
        hidden: ValueId,
        tokens: ValueId,
        spans: ValueId,
        tensors: &[(&str, String)],
        op: Op,
    ) -> Result<ValueId> {
        self.one(op, &[hidden, tokens, spans], tensors, "decision")
    }
}
