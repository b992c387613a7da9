// Fetches a path of a host with Go's own TLS and its own idea of roots.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	host, path := os.Args[1], os.Args[2]
	connection, err := tls.Dial("tcp", host+":443", nil)
	check(err)
	fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer decoy\r\nConnection: close\r\n\r\n", path, host)
	answer, err := io.ReadAll(connection)
	check(err)
	fmt.Println(string(answer))
	if !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		os.Exit(1)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
