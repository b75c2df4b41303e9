//! Roles that a file does not state: told by a token's text.
//!
//! Converters write few of the role keys, and models end their turn with more tokens than one. The reference implementation therefore knows
//! texts, and clients rely on generation ending where it ends there.

use crate::pieces::Kinds;
use crate::text_index::TextIndex;
use crate::vocabulary::SpecialIds;
use std::collections::BTreeSet;

const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const END_OF_MESSAGE: &[&str] = &["<|eom_id|>"];
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PADDING: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPOSITORY: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEPARATOR: &[&str] = &["<|file_sep|>"];

/// Texts that end a generation wherever they are in a vocabulary.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Texts of the harmony format that are part of the answer's structure: always shown.
const ALWAYS_SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Fill in the roles that the file leaves open, correct the kinds of tokens whose text tells what they are, and answer the
/// set of tokens that end a generation.
pub(crate) fn find_roles(tokens: &TextIndex, kinds: &mut [Kinds], special: &mut SpecialIds) -> BTreeSet<u32> {
    let find = |text: &str| tokens.find(text.as_bytes());
    let mark = |kinds: &mut [Kinds], id: u32| {
        if let Some(kinds) = kinds.get_mut(id as usize) {
            *kinds = kinds.with(Kinds::CONTROL);
        }
    };
    for (role, texts) in [
        (&mut special.eot, END_OF_TURN),
        (&mut special.eom, END_OF_MESSAGE),
        (&mut special.fim_pre, FIM_PREFIX),
        (&mut special.fim_suf, FIM_SUFFIX),
        (&mut special.fim_mid, FIM_MIDDLE),
        (&mut special.fim_pad, FIM_PADDING),
        (&mut special.fim_rep, FIM_REPOSITORY),
        (&mut special.fim_sep, FIM_SEPARATOR),
    ] {
        if role.is_none()
            && let Some(id) = texts.iter().find_map(|text| find(text))
        {
            *role = Some(id);
            mark(kinds, id);
        }
    }

    let mut ends: BTreeSet<u32> =
        [special.fim_pad, special.fim_rep, special.fim_sep].into_iter().flatten().collect();
    for id in END_OF_GENERATION.iter().filter_map(|text| find(text)) {
        ends.insert(id);
        mark(kinds, id);
    }
    let mut set = |kind: Kinds, id: u32| {
        if let Some(kinds) = kinds.get_mut(id as usize) {
            *kinds = kind;
        }
    };
    for id in ALWAYS_SHOWN.iter().filter_map(|text| find(text)) {
        set(Kinds::USER_DEFINED, id);
    }
    ends.extend([special.eos, special.eot, special.eom].into_iter().flatten());

    let has = |ends: &BTreeSet<u32>, text: &str| find(text).is_some_and(|id| ends.contains(&id));
    // With a token of its own for the end of the answer, "<|end|>" only ends a part of it.
    let call = has(&ends, "<|call|>") || has(&ends, "<|calls|>");
    if call
        && (has(&ends, "<|return|>") || has(&ends, "<|flush|>"))
        && let Some(id) = find("<|end|>")
        && ends.remove(&id)
    {
        set(Kinds::USER_DEFINED, id);
    }
    // Where these are, "</s>" is an ordinary word.
    if (has(&ends, "<|tool_response>") || has(&ends, "<|plamo:eos|>"))
        && let Some(id) = find("</s>")
        && ends.remove(&id)
    {
        set(Kinds::NORMAL, id);
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(texts: &[&str], special: SpecialIds) -> (Vec<u32>, SpecialIds, Vec<Kinds>) {
        let mut tokens = TextIndex::default();
        for text in texts {
            tokens.insert(text.as_bytes()).unwrap().unwrap();
        }
        let mut kinds = vec![Kinds::NORMAL; texts.len()];
        let mut special = special;
        let ends = find_roles(&tokens, &mut kinds, &mut special);
        (ends.into_iter().collect(), special, kinds)
    }

    #[test]
    fn texts_tell_roles() {
        let (ends, special, kinds) = roles(
            &["a", "<|endoftext|>", "<|im_end|>", "<|fim_pad|>"],
            SpecialIds { eos: Some(0), ..Default::default() },
        );
        assert_eq!(ends, [0, 1, 2, 3]);
        assert_eq!((special.eot, special.fim_pad), (Some(2), Some(3)));
        assert!(kinds[2].has(Kinds::CONTROL) && !kinds[0].has(Kinds::CONTROL));
        // A role that the file states stays, and the texts end a generation all the same.
        let stated = SpecialIds { eot: Some(0), ..Default::default() };
        let (ends, special, _) = roles(&["a", "<|im_end|>", "</s>", "[EOS]"], stated);
        assert_eq!((ends, special.eot), (vec![0, 1, 2, 3], Some(0)));
    }

    #[test]
    fn end_of_a_part_is_no_end() {
        let (ends, _, kinds) =
            roles(&["<|end|>", "<|return|>", "<|call|>", "<|channel|>"], SpecialIds::default());
        assert_eq!(ends, [1, 2]);
        assert_eq!((kinds[0], kinds[3]), (Kinds::USER_DEFINED, Kinds::USER_DEFINED));
        let (ends, _, _) = roles(&["<|end|>", "<|return|>"], SpecialIds::default());
        assert_eq!(ends, [0, 1]);
        let (ends, _, kinds) = roles(&["</s>", "<|tool_response>"], SpecialIds::default());
        assert_eq!(ends, [1]);
        assert_eq!(kinds[0], Kinds::NORMAL);
    }
}
