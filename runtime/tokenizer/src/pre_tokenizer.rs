//! The table of pre-tokenizers: how text is cut into words before merging, by the name that a file states.

use crate::split::Step::{self, DigitGroups, NewlineRuns, Pattern};

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre` that mean this row.
    pub names: &'static [&'static str],
    /// Applied one after the other: each cuts the pieces that the one before left.
    pub steps: &'static [Step],
    /// A word that is itself a token is taken whole, whatever the merges say.
    pub ignore_merges: bool,
    /// A begin-of-sequence token goes in front where the file does not say otherwise.
    pub add_bos: bool,
    /// Letters stand for bytes. Where this is false tokens are plain UTF-8 with U+2581 for a space, and `<0x0A>` for a byte.
    pub byte_level: bool,
}

/// The row of a name, or `None` where the name is unknown.
#[must_use]
pub fn pre_tokenizer(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name))
}

const ROW: PreTokenizer =
    PreTokenizer { names: &[], steps: &[], ignore_merges: false, add_bos: false, byte_level: true };

const GPT2: Step = Pattern(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)");
const DIGIT: Step = Pattern(r"\p{N}");
const LLAMA3: Step = Pattern(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: Step = Pattern(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN35: Step = Pattern(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const DEEPSEEK_V3: Step = Pattern(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
);
const BLOOM: Step = Pattern(r" ?[^(\s|.,!?…。，、।۔،)]+");
/// The reference implementation's patterns match no white space beyond ASCII by an explicit range, hence `--\s`.
const DEEPSEEK_CJK: Step = Pattern(r"[[一-龥ࠀ-一가-\u{D7FF}]--\s]+");

/// Every pre-tokenizer that is known.
///
/// The patterns are the published ones (`tokenizer.json` of the models) in the form that the reference implementation runs:
/// where it lets only ASCII letters have a case (`tekken`, `gpt-4o`) or no letter at all (`tiny_aya`, `youtu`), so do these.
pub const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default"],
        steps: &[Pattern(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, Pattern(r"\p{N}+"), Pattern(r"[0-9][0-9][0-9]")],
        ..ROW
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        steps: &[GPT2],
        ..ROW
    },
    PreTokenizer {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        steps: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..ROW
    },
    PreTokenizer { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], steps: &[LLAMA3], ..ROW },
    PreTokenizer { names: &["glm4", "glm5"], steps: &[LLAMA3], ignore_merges: true, ..ROW },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        steps: &[QWEN2],
        ..ROW
    },
    PreTokenizer { names: &["qwen35"], steps: &[QWEN35], ..ROW },
    PreTokenizer {
        names: &["deepseek-v3", "joyai-llm", "hunyuan-dense", "hy_v4"],
        steps: &[Pattern(r"\p{N}{1,3}"), Pattern(r"[一-龥぀-ゟ゠-ヿ]+"), DEEPSEEK_V3],
        ..ROW
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        steps: &[
            Pattern(r"[\r\n]"),
            Pattern(concat!(
                r"\s?",
                r"[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
                r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
                r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
                r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}",
                r"\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}",
                r"\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}",
                r"\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}",
                r"\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}",
                r"\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}",
                r"\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}",
                r"\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}",
                r"\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}",
                r"\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}",
                r"\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+",
            )),
            Pattern(r"\s?[[!-/:-~！-／：-～‘-‟\u{3000}-。]--\s]+"),
            Pattern(r"\s+$"),
            DEEPSEEK_CJK,
            Pattern(r"\p{N}+"),
        ],
        ..ROW
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        steps: &[Pattern(r"[\r\n]"), Pattern(r"\s?\p{L}+"), Pattern(r"\s?\p{P}+"), DEEPSEEK_CJK, DIGIT],
        ..ROW
    },
    PreTokenizer {
        names: &["spark2_5"],
        steps: &[
            Pattern(r"\p{N}{1,3}"),
            Pattern(r"[一-龥぀-ゟ゠-ヿ]+"),
            Pattern(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
            ),
            DIGIT,
        ],
        ..ROW
    },
    PreTokenizer {
        names: &["youtu"],
        steps: &[
            Pattern(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u{3001}-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"),
            Pattern(
                r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
        ],
        ignore_merges: true,
        ..ROW
    },
    PreTokenizer {
        names: &["falcon"],
        steps: &[Pattern(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, Pattern(r"[0-9][0-9][0-9]")],
        ..ROW
    },
    PreTokenizer {
        names: &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        steps: &[DIGIT, GPT2],
        ..ROW
    },
    PreTokenizer { names: &["poro-chat", "bloom", "gpt3-finnish"], steps: &[BLOOM], ..ROW },
    PreTokenizer { names: &["viking"], steps: &[BLOOM, DIGIT], ..ROW },
    PreTokenizer {
        names: &["tekken"],
        steps: &[Pattern(
            r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ignore_merges: true,
        add_bos: true,
        ..ROW
    },
    PreTokenizer {
        names: &["chameleon"],
        steps: &[
            Pattern(r"<sentinel:[0-9]+>"),
            Pattern(r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            Pattern(r"([\t\n]|    |  )"),
            DIGIT,
            Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ],
        add_bos: true,
        ..ROW
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        steps: &[Pattern(
            r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..ROW
    },
    PreTokenizer {
        names: &["granite-embed-multi-97m"],
        steps: &[Pattern(
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}--[a-z]]*[\p{L}\p{M}--[A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}--[a-z]]+[\p{L}\p{M}--[A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ignore_merges: true,
        ..ROW
    },
    PreTokenizer {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[
            DigitGroups { ascii: false },
            Pattern(
                r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
        ],
        ..ROW
    },
    PreTokenizer {
        names: &["kimi-k2"],
        steps: &[Pattern(concat!(
            r"[一-鿿㐀-䶿\u{20000}-\u{2A6DF}\u{2A700}-\u{2EBEF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]+",
            r"|[^\r\n\p{L}\p{N}]?[\p{L}--[一-鿿㐀-䶿\u{20000}-\u{2A6DF}\u{2A700}-\u{2EBEF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]]+",
            r"(?:'[sS]|'[tT]|'[mM]|'[dD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ))],
        ..ROW
    },
    PreTokenizer { names: &["superbpe"], steps: &[Pattern(r"\p{N}+"), DigitGroups { ascii: true }], ..ROW },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[Pattern(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..ROW
    },
    PreTokenizer {
        names: &["seed-coder"],
        steps: &[Pattern(
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..ROW
    },
    PreTokenizer {
        names: &["ufakzeka"],
        steps: &[Pattern(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..ROW
    },
    PreTokenizer {
        names: &["afmoe"],
        steps: &[
            DigitGroups { ascii: false },
            Pattern(
                r"[一-鿿㐀-䶿\u{8C48}-\u{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-\u{2FDF}\u{0E40}-\u{0E7F}\u{0E80}-\u{0EFF}ក-\u{17FF}က-႟ꩠ-ꩿꧠ-\u{A9FF}가-\u{D7AF}ᄀ-ᇿ]+",
            ),
            DEEPSEEK_V3,
        ],
        ..ROW
    },
    PreTokenizer { names: &["laguna"], steps: &[NewlineRuns, QWEN2], ..ROW },
    PreTokenizer {
        names: &["exaone-moe"],
        steps: &[Pattern(
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..ROW
    },
    PreTokenizer {
        names: &["minicpm5"],
        steps: &[
            Pattern(r"\p{N}{1,3}"),
            Pattern(
                r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
        ],
        ignore_merges: true,
        ..ROW
    },
    PreTokenizer {
        names: &["gemma4", "granite-embed-multi-311m"],
        steps: &[NewlineRuns],
        add_bos: true,
        byte_level: false,
        ..ROW
    },
    PreTokenizer { names: &["sarvam-moe"], steps: &[NewlineRuns], byte_level: false, ..ROW },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Splitter;

    #[test]
    fn names_are_unique_and_every_row_compiles() {
        let mut seen = std::collections::HashSet::new();
        for row in PRE_TOKENIZERS {
            assert!(!row.names.is_empty());
            for name in row.names {
                assert!(seen.insert(name), "{name} stands twice");
            }
            let _ = Splitter::new(row.steps);
        }
        assert!(pre_tokenizer("qwen3.7-from-the-future").is_none());
    }
}
