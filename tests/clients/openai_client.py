"""The official OpenAI client against a running server: plain, streamed, errors. usage: openai_client.py URL"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="secret", max_retries=0)
question = [{"role": "user", "content": "Hello! Who are you?"}]

models = [model.id for model in client.models.list().data]
assert models == ["ember"], models

answer = client.chat.completions.create(model="ember", messages=question, temperature=0, max_tokens=60)
text = answer.choices[0].message.content
assert answer.choices[0].finish_reason == "stop", answer
assert text.startswith("I am Ember"), text
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0, answer.usage
print("plain:   ", text)

stream = client.chat.completions.create(
    model="ember", messages=question, temperature=0, stream=True, stream_options={"include_usage": True}
)
chunks = list(stream)
joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
assert joined == text, joined
assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens, chunks[-1]
print("streamed:", joined)

done = client.completions.create(model="ember", prompt="It is a truth universally", temperature=0, max_tokens=12, logprobs=2)
assert done.choices[0].finish_reason in ("length", "stop") and done.choices[0].text, done
print("legacy:  ", repr(done.choices[0].text))

scored = client.chat.completions.create(
    model="ember", messages=question, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
)
content = scored.choices[0].logprobs.content
assert len(content) == 4 and all(len(t.top_logprobs) == 3 for t in content), content
assert all(t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob for t in content)

for arguments, wanted in [
    (dict(messages=question, temperature="hot"), openai.BadRequestError),
    (dict(messages=[{"role": "user", "content": "word " * 6000}]), openai.BadRequestError),
    (dict(messages=question, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]), openai.InternalServerError),
]:
    try:
        client.chat.completions.create(model="ember", **arguments)
    except wanted as error:
        print("refused: ", error.status_code, str(error)[:90])
    else:
        raise AssertionError(f"{wanted.__name__} was expected for {list(arguments)}")

try:
    openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="wrong", max_retries=0).models.list()
except openai.AuthenticationError as error:
    print("refused: ", error.status_code)
else:
    raise AssertionError("a wrong key was taken")
