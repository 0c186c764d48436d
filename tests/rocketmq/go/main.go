// Member of a group by the official client for Go, until its input ends. Arguments: ADDRESS GROUP TOPIC.
// Prints a line for each message when it has come: queue id and queue offset.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	rlog.SetLogLevel("fatal")
	var printing sync.Mutex
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		printing.Lock()
		defer printing.Unlock()
		for _, message := range messages {
			fmt.Println(message.Queue.QueueId, message.QueueOffset)
		}
		return consumer.ConsumeSuccess, nil
	}
	names := consumer.WithNameServer([]string{os.Args[1]})
	member, err := rocketmq.NewPushConsumer(names, consumer.WithGroupName(os.Args[2]))
	if err == nil {
		err = member.Subscribe(os.Args[3], consumer.MessageSelector{}, take)
	}
	if err == nil {
		err = member.Start()
	}
	if err == nil {
		_, _ = io.Copy(io.Discard, os.Stdin)
		err = member.Shutdown() // commits the offsets
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
