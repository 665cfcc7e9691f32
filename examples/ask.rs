use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let question = std::env::args().nth(1).ok_or("a question is missing")?;
    let mut connection = UnixStream::connect(std::env::var("CAR_SOCKET")?)?;
    let messages = json!([{"role": "user", "content": question}]);
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "infer_stream",
        "params": {"messages": messages, "temperature": 0}});
    writeln!(connection, "{request}")?;
    for line in BufReader::new(connection).lines() {
        let message: Value = serde_json::from_str(&line?)?;
        if message["method"] == "infer_stream/chunk" {
            print!("{}", message["params"]["text"].as_str().unwrap_or_default());
            std::io::stdout().flush()?;
        } else if let Some(error) = message.get("error") {
            return Err(format!("error {}: {}", error["code"], error["message"]).into());
        } else {
            println!("\n{} tokens", message["result"]["usage"]["completion_tokens"]);
            break;
        }
    }
    Ok(())
}
