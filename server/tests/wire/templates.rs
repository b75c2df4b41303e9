//! Chat templates: the features that published templates use, refusals in the template's own words, the built-in ones.

use crate::support::{post, routes};
use bloomery_serve::template::{BUILTIN, CHATML, Chat, ChatTemplate, Clock, Continue};
use serde_json::{Map, Value, json};

fn clock() -> jiff::Zoned {
    "2024-07-26T10:20:30[UTC]".parse().unwrap()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>", (false, false), Clock::new(clock)).unwrap()
}

fn chat(messages: Value) -> Chat {
    let Value::Array(messages) = messages else { panic!() };
    Chat { messages, enable_thinking: true, add_generation_prompt: true, ..Chat::default() }
}

fn render(source: &str, messages: Value) -> String {
    template(source).render(&chat(messages)).unwrap().prompt
}

#[test]
fn features_of_published_templates() {
    for (source, expected) in [
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('a') }}{{ m(x='b') }}", "[a][b]"),
        (
            "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "10",
        ),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "023",
        ),
        ("{{ strftime_now('%d %b %Y') }} {{ date_string }}", "26 Jul 2024 26 Jul 2024"),
        ("{{ {'a': [1, 'é', true, none]} | tojson }}", "{\"a\": [1, \"é\", true, null]}"),
        ("{{ {'b': 1, 'a': {}} | tojson(indent=2) }}", "{\n  \"b\": 1,\n  \"a\": {}\n}"),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", "{\"a\":2,\"b\":1}"),
        ("{{ 'é<' | tojson(ensure_ascii=true) }}", "\"\\u00e9<\""),
        ("{{ ' a b '.strip().split(' ')[-1].upper() }}", "B"),
        (
            "{{ 'xxaxx'.lstrip('x').rstrip('x') }}{{ 'ab'.startswith('a') }}{{ 'ab'.replace('a', 'c') }}",
            "aTruecb",
        ),
        (
            "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'a': 1}.get('b', 'd') }}",
            "a1b2d",
        ),
        ("{{ messages[::-1][0].content }}{{ messages[-1]['role'] }}", "hiuser"),
        ("{% if messages[0].tool_calls is defined and messages[0].tool_calls %}x{% else %}y{% endif %}", "y"),
        (
            "{% if messages[0].content is string %}s{% endif %}{% if messages is iterable and messages is not mapping %}i{% endif %}",
            "si",
        ),
        ("{{ bos_token }}{{ eos_token }}{{ messages | length }}", "<s></s>1"),
        (
            "{%- for m in messages %}\n    {%- if loop.first and not loop.last %}a{% endif %}\n  {{- m.content + '|' }}\n{%- endfor %}\n",
            "hi|",
        ),
        ("  {% if true %}\nx\n  {% endif %}\ny\n", "x\ny"),
        ("{% generation %}g{% endgeneration %}{{ messages | map(attribute='role') | join(',') }}", "guser"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ 'a' ~ 1 ~ 'b' }}{{ 7 // 2 }}{{ 7 % 2 }}", "a1b31"),
    ] {
        assert_eq!(render(source, json!([{"role": "user", "content": "hi"}])), expected, "{source}");
    }
}

#[test]
fn tools_as_a_list_or_as_a_text() {
    let mut chat = chat(json!([{"role": "user", "content": "hi"}]));
    assert_eq!(template("{{ 'x' + functions }}").render(&chat).unwrap().prompt, "x");
    chat.tools = Some(json!([{"a": 1}]));
    assert_eq!(
        template("{{ 'x' + functions }}").render(&chat).unwrap().prompt,
        "x[\n  {\n    \"a\": 1\n  }\n]"
    );
    assert_eq!(
        template("{{ tools[0].a }}{{ functions is defined }}").render(&chat).unwrap().prompt,
        "1False"
    );
}

#[test]
fn a_refusal_is_told_in_the_templates_words() {
    let refusing = template(
        "{% if messages[0].role != 'user' %}{{ raise_exception('user first, please') }}{% endif %}ok",
    );
    let error = refusing
        .render(&chat(json!([{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])))
        .unwrap_err();
    assert_eq!(error.status().as_u16(), 400);
    assert!(error.to_string().contains("user first, please"), "{error}");
    let failing = template("{{ messages[0].a.b.c }}");
    assert_eq!(
        failing.render(&chat(json!([{"role": "user", "content": "x"}]))).unwrap_err().status().as_u16(),
        400
    );
    let bad_format = template("{{ strftime_now('%!') }}");
    assert!(bad_format.render(&chat(json!([]))).unwrap_err().to_string().contains("strftime_now"));
    for source in ["{% if %}", "{{ 1 +", "{% for x in y %}"] {
        assert!(ChatTemplate::new(source, "", "", (false, false), Clock::SYSTEM).is_err(), "{source}");
    }
}

#[test]
fn a_template_cannot_run_for_ever() {
    let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{{ '' }}{% endfor %}{% endfor %}";
    let template = template(endless);
    let error = template.render(&chat(json!([{"role": "user", "content": "x"}]))).unwrap_err();
    assert!(error.to_string().contains("too many steps"), "{error}");
}

#[test]
fn messages_come_in_the_form_that_the_template_takes() {
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(render("{{ messages[0].content + '.' }}", parts.clone()), "a\nb.");
    let typed = "{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}";
    assert_eq!(render(typed, parts), "[a][b]");
    assert_eq!(render(typed, json!([{"role": "user", "content": "x"}])), "[x]");
    let no_system = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content + ';' }}{% endfor %}";
    let talk = json!([{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}]);
    assert_eq!(render(no_system, talk.clone()), "be good\nhi;");
    assert_eq!(
        render(
            "{% for m in messages %}{{ m.role }},{% endfor %}{{ messages[0].content + '' }}",
            json!([{"role": "developer", "content": "x"}])
        ),
        "system,x"
    );
    let calls = json!([
        {"role": "user", "content": "w"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}}]},
    ]);
    let shows = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    assert_eq!(render(shows, calls), "wf{\"a\": [1]}");
}

#[test]
fn an_answer_can_be_begun() {
    let talk = |last: Value| chat(json!([{"role": "user", "content": "hi"}, last]));
    let go = |mut chat: Chat, part| {
        chat.add_generation_prompt = false;
        chat.continue_last = Some(part);
        template(CHATML).render(&chat).unwrap()
    };
    let rendered = go(talk(json!({"role": "assistant", "content": "Hel"})), Continue::Auto);
    assert_eq!(rendered.prompt, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHel");
    assert_eq!(
        (rendered.prefill.as_str(), rendered.generation_prompt.as_str()),
        ("Hel", "<|im_start|>assistant\nHel")
    );
    let parts = json!({"role": "assistant", "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "ill"}]});
    assert_eq!(go(talk(parts), Continue::Content).prefill, "Wh\n\nill");
    let thought = json!({"role": "assistant", "content": "", "reasoning_content": "hm"});
    assert_eq!(go(talk(thought), Continue::Auto).prefill, "hm");
}

#[test]
fn tokens_that_the_tokenizer_adds_are_not_doubled() {
    let source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
    let chat = chat(json!([{"role": "user", "content": "x"}]));
    let plain = ChatTemplate::new(source, "<s>", "</s>", (false, false), Clock::SYSTEM).unwrap();
    assert_eq!(plain.render(&chat).unwrap().prompt, "<s>x</s>");
    let stripped = ChatTemplate::new(source, "<s>", "</s>", (true, true), Clock::SYSTEM).unwrap();
    assert_eq!(stripped.render(&chat).unwrap().prompt, "x");
}

#[test]
fn a_thought_that_is_opened_against_the_wish_is_closed() {
    let source = "{{ messages[0].content }}{% if add_generation_prompt %}<a><think>\n{% endif %}";
    let mut chat = chat(json!([{"role": "user", "content": "x"}]));
    assert_eq!(template(source).render(&chat).unwrap().prompt, "x<a><think>\n");
    chat.enable_thinking = false;
    assert_eq!(template(source).render(&chat).unwrap().prompt, "x<a><think>\n</think>");
}

#[test]
fn every_built_in_template_renders_a_talk() {
    let words = ["rules", "question", "answer", "onward"];
    let roles = ["system", "user", "assistant", "user"];
    let talk: Value =
        words.iter().zip(roles).map(|(word, role)| json!({"role": role, "content": word})).collect();
    for (name, source) in BUILTIN {
        let prompt = render(source, talk.clone());
        let found: Vec<usize> = words
            .iter()
            .map(|word| prompt.find(word).unwrap_or_else(|| panic!("{name}: {prompt}")))
            .collect();
        assert!(found.is_sorted(), "{name}: {prompt}");
    }
    let command_r = BUILTIN.iter().find(|(name, _)| *name == "command-r").unwrap().1;
    assert_eq!(
        render(
            command_r,
            json!([{"role": "system", "content": "You are a test."}, {"role": "user", "content": "Hi there"}])
        ),
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>You are a test.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi there<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    );
}

#[tokio::test]
async fn variables_of_flags_and_requests() {
    let source = "{{ messages[0].content }}|{{ colour }}|{{ reasoning_effort }}|{{ enable_thinking }}";
    let routes = routes(&[
        "--chat-template",
        source,
        "--chat-template-kwargs",
        "{\"colour\": \"red\"}",
        "--reasoning-effort",
        "low",
    ]);
    let ask = async |more: Value| {
        let mut body: Map<String, Value> =
            json!({"messages": [{"role": "user", "content": "x"}]}).as_object().unwrap().clone();
        body.extend(more.as_object().unwrap().clone());
        post(&routes, "/apply-template", &Value::Object(body)).await.json()["prompt"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(ask(json!({})).await, "x|red|low|True");
    assert_eq!(
        ask(json!({"chat_template_kwargs": {"colour": "blue", "enable_thinking": false}})).await,
        "x|blue|low|False"
    );
    assert_eq!(ask(json!({"reasoning_effort": "high"})).await, "x|red|high|True");
    assert_eq!(ask(json!({"reasoning_effort": "none"})).await, "x|red||False");
}
