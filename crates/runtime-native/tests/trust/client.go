// A TLS client with Go's own idea of roots; "serve" makes it the server, for images that have nothing else.
package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		serve()
		return
	}
	connection, err := tls.Dial("tcp", "127.0.0.1:443", &tls.Config{ServerName: "origin.test"})
	check(err)
	fmt.Fprint(connection, "GET /file HTTP/1.0\r\nHost: origin.test\r\n\r\n")
	_, err = bufio.NewReader(connection).ReadString('\n')
	check(err)
}

func serve() {
	pair, err := tls.LoadX509KeyPair("leaf.pem", "leaf.key")
	check(err)
	listener, err := tls.Listen("tcp", "127.0.0.1:443", &tls.Config{Certificates: []tls.Certificate{pair}})
	check(err)
	fmt.Println("serving")
	for {
		connection, err := listener.Accept()
		check(err)
		go func() {
			bufio.NewReader(connection).ReadString('\n')
			fmt.Fprint(connection, "HTTP/1.0 204 No Content\r\n\r\n")
			connection.Close()
		}()
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
