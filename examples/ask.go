package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
)

type message struct {
	Method string
	Params struct{ Text string }
	Result *struct {
		Usage struct {
			Tokens int `json:"completion_tokens"`
		}
	}
	Error *struct {
		Code    int
		Message string
	}
}

func main() {
	connection, err := net.Dial("unix", os.Getenv("CAR_SOCKET"))
	if err != nil {
		log.Fatal(err)
	}
	question := map[string]string{"role": "user", "content": os.Args[1]}
	params := map[string]any{"messages": []any{question}, "temperature": 0}
	request := map[string]any{"jsonrpc": "2.0", "id": 1, "method": "infer_stream", "params": params}
	if err := json.NewEncoder(connection).Encode(request); err != nil {
		log.Fatal(err)
	}
	for messages := json.NewDecoder(connection); ; {
		var next message
		if err := messages.Decode(&next); err != nil {
			log.Fatal(err)
		}
		switch {
		case next.Method == "infer_stream/chunk":
			fmt.Print(next.Params.Text)
		case next.Error != nil:
			log.Fatalf("error %d: %s", next.Error.Code, next.Error.Message)
		case next.Result != nil:
			fmt.Printf("\n%d tokens\n", next.Result.Usage.Tokens)
			return
		}
	}
}
