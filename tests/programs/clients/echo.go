// Echo is a Go server and client in one: echo server|client ADDRESS:PORT. Go programs call the kernel without the C
// library, so they must be unaffected, also when their peer runs under Millrace.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"sync"
)

const (
	connections = 8
	rounds      = 300
	bulkBytes   = 4 << 20
)

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			io.Copy(connection, connection)
		}()
	}
}

func work(address string, number int) ([]byte, error) {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	source, hash := rand.New(rand.NewSource(int64(number))), sha256.New()
	for round := 0; round < rounds; round++ {
		message := make([]byte, 1+source.Intn(4000))
		source.Read(message)
		if _, err := connection.Write(message); err != nil {
			return nil, err
		}
		answer := make([]byte, len(message))
		if _, err := io.ReadFull(connection, answer); err != nil {
			return nil, err
		}
		if !bytes.Equal(answer, message) {
			return nil, fmt.Errorf("connection %d: another message came back", number)
		}
		hash.Write(answer)
	}
	bulk := make([]byte, bulkBytes)
	source.Read(bulk)
	go func() {
		connection.Write(bulk)
		connection.(*net.TCPConn).CloseWrite()
	}()
	answer, err := io.ReadAll(connection)
	if err != nil || !bytes.Equal(answer, bulk) {
		return nil, fmt.Errorf("connection %d: other bytes came back: %v", number, err)
	}
	hash.Write(answer)
	return hash.Sum(nil), nil
}

func main() {
	if os.Args[1] == "server" {
		log.Fatal(serve(os.Args[2]))
	}
	sums := make([][]byte, connections)
	var group sync.WaitGroup
	for number := range sums {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			sum, err := work(os.Args[2], number)
			if err != nil {
				log.Fatal(err)
			}
			sums[number] = sum
		}(number)
	}
	group.Wait()
	fmt.Printf("{\"checksum\": \"%x\"}\n", sha256.Sum256(bytes.Join(sums, nil)))
}
