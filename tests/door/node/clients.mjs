// OpenAI's, Anthropic's and Ollama's clients for Node and Vercel's AI SDK, unmodified, against the door at URL with KEY.
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import { generateText, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const url = process.env.URL_OF_DOOR;
const key = process.env.KEY_OF_DOOR;
const messages = [{ role: "user", content: process.env.QUESTION }];
const found = {};

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const chat = await openai.chat.completions.create({ model: "guide", messages, temperature: 0 });
found.chat = chat.choices[0].message.content;
found.stream = "";
for await (const chunk of await openai.chat.completions.create({ model: "guide", messages, temperature: 0, stream: true })) {
  found.stream += chunk.choices[0]?.delta?.content ?? "";
}
found.responses = (await openai.responses.create({ model: "guide", input: process.env.QUESTION, temperature: 0 })).output_text;
const stream = openai.responses.stream({ model: "guide", input: process.env.QUESTION, temperature: 0 });
found.responsesStream = (await stream.finalResponse()).output_text;
found.models = (await openai.models.list()).data.map((model) => model.id);
found.error = await openai.models.retrieve("other").catch((error) => error.status);
found.embedding = (await openai.embeddings.create({ model: "guide", input: "one" })).data[0].embedding.length > 0;

const sdk = { model: createOpenAICompatible({ name: "card", baseURL: `${url}/v1`, apiKey: key })("guide"), messages, temperature: 0 };
found.sdk = (await generateText(sdk)).text;
found.sdkStream = "";
for await (const piece of streamText(sdk).textStream) {
  found.sdkStream += piece;
}

const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const request = { model: "claude-any", max_tokens: 200, messages };
found.message = (await anthropic.messages.create({ ...request, temperature: 0 })).content[0].text;
found.messageStream = (await anthropic.messages.stream({ ...request, temperature: 0 }).finalMessage()).content[0].text;
found.counted = (await anthropic.messages.countTokens({ model: "guide", messages })).input_tokens > 0;

const ollama = new Ollama({ host: url, headers: { Authorization: `Bearer ${key}` } });
const options = { temperature: 0 };
found.ollama = (await ollama.chat({ model: "guide", messages, options })).message.content;
found.ollamaStream = "";
for await (const part of await ollama.chat({ model: "guide", messages, options, stream: true })) {
  found.ollamaStream += part.message.content;
}
found.tags = (await ollama.list()).models.map((model) => model.name);
console.log(JSON.stringify(found));
