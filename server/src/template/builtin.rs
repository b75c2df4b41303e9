//! Built-in templates: the formats that `--chat-template NAME` can name, and the one for files that carry none.

use super::TemplateError;

/// The format of files without a template.
pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Name and text of each.
pub const BUILTIN: &[(&str, &str)] = &[
    ("chatml", CHATML),
    (
        "command-r",
        "{% for message in messages %}{% set name = 'CHATBOT' if message.role == 'assistant' else message.role | upper %}\
{{ '<|START_OF_TURN_TOKEN|><|' + name + '_TOKEN|>' + message.content | trim + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
    ),
    (
        "falcon3",
        "{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
    (
        "gemma",
        "{% set lead = namespace(text='') %}{% for message in messages %}{% if message.role == 'system' %}\
{% set lead.text = message.content | trim + '\\n\\n' %}{% else %}\
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' + lead.text + message.content | trim + '<end_of_turn>\\n' }}\
{% set lead.text = '' %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    ),
    (
        "granite",
        "{% for message in messages %}{{ '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content + '<|end_of_text|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
    ),
    (
        "llama2",
        "{% set lead = namespace(text='') %}{% for message in messages %}{% if message.role == 'system' %}\
{% set lead.text = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' %}{% elif message.role == 'user' %}\
{{ bos_token + '[INST] ' + lead.text + message.content + ' [/INST]' }}{% set lead.text = '' %}{% else %}\
{{ message.content + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "llama3",
        "{{ bos_token }}{% for message in messages %}\
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    ),
    (
        "llama4",
        "{{ bos_token }}{% for message in messages %}\
{{ '<|header_start|>' + message.role + '<|header_end|>\\n\\n' + message.content | trim + '<|eot|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\\n\\n' }}{% endif %}",
    ),
    (
        "mistral-v7",
        "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}\
{{ '[SYSTEM_PROMPT] ' + message.content + '[/SYSTEM_PROMPT]' }}{% elif message.role == 'user' %}\
{{ '[INST] ' + message.content + '[/INST]' }}{% else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}",
    ),
    (
        "phi3",
        "{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
    (
        "phi4",
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    ),
    (
        "zephyr",
        "{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + '<|endoftext|>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
];

/// What `--chat-template` means: a name, or a template's text (anything with a tag in it).
///
/// # Errors
/// A word that is neither.
pub fn named_or_text(word: &str) -> Result<String, TemplateError> {
    if let Some((_, text)) = BUILTIN.iter().find(|(name, _)| *name == word) {
        return Ok((*text).to_owned());
    }
    if word.contains("{%") || word.contains("{{") {
        return Ok(word.to_owned());
    }
    let known = BUILTIN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Err(TemplateError::Name { name: word.to_owned(), known })
}
